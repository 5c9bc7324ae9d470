//! Descriptors over Unix sockets (SCM_RIGHTS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one message.
pub const MAX_FDS: usize = 4;

/// Sends `bytes`, the descriptors with the first of them. Returns how many bytes went out, at least 1; the rest goes out
/// by plain writes. Errors: more than [`MAX_FDS`] descriptors, descriptors without a byte, or the socket's error.
pub fn send(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
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
        match sendmsg(&stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
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

    #[test]
    fn a_descriptor_arrives_close_on_exec_and_too_many_are_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        assert_eq!(send(&left, b"ab", &[left.as_fd()]).unwrap(), 2);
        let mut buf = [0; 8];
        let (got, fds) = recv(&right, &mut buf, 1).unwrap();
        assert_eq!((&buf[..got], fds.len()), (&b"ab"[..], 1));
        assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        drop(fds);
        send(&left, b"c", &[left.as_fd(), left.as_fd()]).unwrap();
        assert_eq!(recv(&right, &mut buf, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(&left, b"d", &[]).unwrap();
        assert_eq!(recv(&right, &mut buf, 1).unwrap().0, 1);
        drop(left);
        assert_eq!(recv(&right, &mut buf, 1).unwrap().0, 0);
        assert!(send(&right, b"", &[]).is_err());
    }
}
