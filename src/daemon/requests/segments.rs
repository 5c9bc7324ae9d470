//! Memory that the client shares: segments, and lanes in one of them.

use std::os::fd::{AsFd as _, OwnedFd};

use super::state::{Answer, Connected, Leased};
use crate::base::ids::SegmentId;
use crate::base::limits;
use crate::base::sync::lock;
use crate::daemon::client::State;
use crate::link::message::LinkRequest;
use crate::protocol::control::Reply;
use crate::protocol::message::{DeviceSegmentSpec, ErrorCode, LaneEventsSpec, SlotSpec, WireError};
use crate::shm::{Lanes, N_SLOTS, Segment};

/// Maps a segment, here and in the executor.
pub fn attach(at: &Connected<'_>, (id, len_bytes, lanes): (SegmentId, u64, bool), fd: Option<OwnedFd>) -> Answer {
    let no_fd = || bad_segment(id, "no descriptor came with AttachSegment; send the memfd with the frame");
    let fd = fd.ok_or_else(no_fd)?;
    if len_bytes > limits::SEGMENT_BYTES {
        let why = format!("segment {}: {len_bytes} bytes: expected at most {}", id.0, limits::SEGMENT_BYTES);
        return Err(WireError::client(ErrorCode::Limit, why));
    }
    let held = [
        at.client.segments.hold("segment", 1)?,
        at.client.segment_bytes.hold("segment", usize::try_from(len_bytes).unwrap_or(usize::MAX))?,
    ];
    let for_executor = fd.try_clone().map_err(|error| WireError::fault(ErrorCode::Internal, error.to_string()))?;
    let segment = Segment::map(id, fd, len_bytes)?;
    let _in_turn = lock(&at.client.showing);
    let executor = {
        let mut state = at.client.state();
        if state.has_segment(id) {
            return Err(bad_segment(id, "attached already; choose another id"));
        }
        if lanes {
            attach_lanes(&mut state, segment)?;
        } else {
            segment.apart_from(state.lanes.iter().map(|lanes| lanes.segment()))?;
            state.segments.attach(segment)?;
        }
        state.segments_held.insert(id, held);
        state.executor.clone()
    };
    if let Some(executor) = executor {
        let attach = LinkRequest::Attach { segment: id, len_bytes, lanes };
        // Of a dead executor the next lease attaches all segments anew.
        match at.ask_quickly(&executor, (at.asked, &attach), Some(for_executor.as_fd())) {
            Err(error) if !executor.is_gone() => {
                forget(at, id, lanes);
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(Reply::Done)
}

fn forget(at: &Connected<'_>, id: SegmentId, lanes: bool) {
    let mut state = at.client.state();
    if lanes {
        state.lanes = None;
    } else {
        // It was attached a moment ago.
        let _ = state.segments.detach(id);
    }
    state.segments_held.remove(&id);
}

/// Has the executor map memory of a device; nothing of it is mapped here.
pub fn attach_device(leased: &Leased<'_>, spec: DeviceSegmentSpec) -> Answer {
    let Leased { at, executor } = leased;
    let id = spec.segment;
    let held = at.client.segments.hold("segment", 1)?;
    {
        let mut state = at.client.state();
        if state.has_segment(id) {
            return Err(bad_segment(id, "attached already; choose another id"));
        }
        state.device_segments.insert(id, held);
    }
    let asked = at.ask_quickly(executor, (at.asked, &LinkRequest::AttachDevice(spec)), None);
    asked.inspect_err(|_| drop(at.client.state().device_segments.remove(&id)))?;
    Ok(Reply::Done)
}

/// Has the executor order a lane's calls on a device by these events.
pub fn open_lane_events(leased: &Leased<'_>, spec: LaneEventsSpec) -> Answer {
    let Leased { at, executor } = leased;
    if !at.client.state().open_lanes.contains(&spec.lane) {
        return Err(at.bad_state(&format!("lane {} is not open; open it first", spec.lane)));
    }
    at.ask_quickly(executor, (at.asked, &LinkRequest::OpenLaneEvents(spec)), None)?;
    Ok(Reply::Done)
}

/// Has the executor order the calls of a stream by these numbers.
pub fn open_slot(leased: &Leased<'_>, spec: SlotSpec) -> Answer {
    let Leased { at, executor } = leased;
    if !(1..N_SLOTS).contains(&spec.slot) {
        let why = format!("slot {}: expected 1 to {}", spec.slot, N_SLOTS - 1);
        return Err(WireError::client(ErrorCode::Limit, why));
    }
    if at.client.state().lanes.is_none() {
        return Err(at.bad_state("no lanes segment; attach one of kind lanes first"));
    }
    at.ask_quickly(executor, (at.asked, &LinkRequest::OpenSlot(spec)), None)?;
    Ok(Reply::Done)
}

fn bad_segment(id: SegmentId, why: &str) -> WireError {
    WireError::client(ErrorCode::BadSegment, format!("segment {}: {why}", id.0))
}

/// Forgets a segment, here and in the executor.
pub fn detach(at: &Connected<'_>, id: SegmentId) -> Answer {
    let executor = {
        let mut state = at.client.state();
        if state.lanes.as_ref().is_some_and(|lanes| lanes.segment().id() == id) {
            let why = format!("segment {}: lanes stay attached until the connection ends", id.0);
            return Err(WireError::client(ErrorCode::BadState, why));
        }
        if state.device_segments.remove(&id).is_none() {
            state.segments.detach(id)?;
            state.segments_held.remove(&id);
        }
        state.executor.clone()
    };
    if let Some(executor) = executor.filter(|executor| !executor.is_gone()) {
        at.ask_quickly(&executor, (at.asked, &LinkRequest::Detach { segment: id }), None)?;
    }
    Ok(Reply::Done)
}

/// Has a lane served.
pub fn open_lane(leased: &Leased<'_>, lane: u32) -> Answer {
    let Leased { at, executor } = leased;
    {
        let mut state = at.client.state();
        let n_lanes = state.lanes.as_ref().map(|lanes| lanes.n_lanes());
        let n_lanes = n_lanes.ok_or_else(|| at.bad_state("no lanes segment; attach one of kind lanes first"))?;
        if lane >= n_lanes.min(limits::LANES) {
            let why = format!("lane {lane}: expected below {}", n_lanes.min(limits::LANES));
            return Err(WireError::client(ErrorCode::Limit, why));
        }
        state.open_lanes.insert(lane);
    }
    at.ask_quickly(executor, (at.asked, &LinkRequest::OpenLane { lane }), None)?;
    Ok(Reply::Done)
}

fn attach_lanes(state: &mut State, segment: Segment) -> Result<(), WireError> {
    if state.lanes.is_some() {
        return Err(bad_segment(segment.id(), "lanes are attached already; one lanes segment a client"));
    }
    segment.apart_from(state.segments.iter())?;
    state.lanes = Some(Lanes::map(segment)?);
    Ok(())
}
