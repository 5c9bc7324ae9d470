//! Descriptors over Unix sockets (SCM_RIGHTS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one message.
pub const MAX_FDS: usize = 4;

/// Sends all of `bytes`, the descriptors with the first of them; waits while the socket is full, until `deadline` at most:
/// a peer that reads a little now and then gains no time. Errors: more than [`MAX_FDS`] descriptors, descriptors without
/// a byte, the socket's, or TimedOut; a part may be out then, so that the stream has no next message.
pub fn send(
    stream: impl AsFd,
    mut bytes: &[u8],
    mut fds: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        match send_some(&stream, bytes, fds) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(sent) => (bytes, fds) = (&bytes[sent..], &[]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_room(&stream, deadline)?,
            Err(error) => return Err(error),
        }
    }
}

/// Sends what fits, without waiting. Returns how many bytes went out, at least 1.
fn send_some(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS || bytes.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptors need a byte, and at most 4 go at once"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(pushed, "the space is made for MAX_FDS");
    }
    loop {
        match sendmsg(&stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Waits until the socket takes more, or has ended. Errors: TimedOut, or the system's.
fn wait_for_room(stream: impl AsFd, deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let left = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(left) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            // Longer than a process lives is no limit.
            Some(left) => Timespec::try_from(left).ok(),
            None => None,
        };
        match poll(&mut [PollFd::new(&stream, PollFlags::OUT)], left.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            polled => return polled.map(drop).map_err(io::Error::from),
        }
    }
}

/// Whether the peer has closed its side, whatever it sent before.
pub fn peer_left(stream: impl AsFd) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut events = [PollFd::new(&stream, PollFlags::RDHUP)];
    poll(&mut events, Some(&Timespec::default())).is_ok_and(|n| n > 0) && events[0].revents().intersects(ended)
}

/// Receives into `buf`: bytes read (0 at end of file) and the descriptors that came with them, close-on-exec. Errors: the
/// socket's, or InvalidData when more than `max_fds` (at most [`MAX_FDS`]) came; those are closed.
pub fn recv(stream: impl AsFd, buf: &mut [u8], max_fds: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&stream, &mut [IoSliceMut::new(buf)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if fds.len() > max_fds || received.flags.contains(ReturnFlags::CTRUNC) {
        let text = format!("more than {max_fds} descriptors came with a message");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_descriptor_arrives_close_on_exec_and_too_many_are_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        send(&left, b"ab", &[left.as_fd()], None).unwrap();
        let mut buf = [0; 8];
        let (got, fds) = recv(&right, &mut buf, 1).unwrap();
        assert_eq!((&buf[..got], fds.len()), (&b"ab"[..], 1));
        assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        drop(fds);
        send(&left, b"c", &[left.as_fd(), left.as_fd()], None).unwrap();
        assert_eq!(recv(&right, &mut buf, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(&left, b"d", &[], None).unwrap();
        assert_eq!(recv(&right, &mut buf, 1).unwrap().0, 1);
        assert!(!peer_left(&right));
        drop(left);
        assert!(peer_left(&right));
        assert_eq!(recv(&right, &mut buf, 1).unwrap().0, 0);
        assert!(send(&right, b"", &[], None).is_err());
    }

    #[test]
    fn a_peer_that_reads_a_little_now_and_then_does_not_move_the_deadline() {
        let (left, right) = UnixStream::pair().unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buf = [0; 4096];
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    recv(&right, &mut buf, 0).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            // At 200 kB/s it would take 5 minutes.
            let sent = send(&left, &vec![0; 64 << 20], &[], Some(Instant::now() + Duration::from_millis(200)));
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }
}
