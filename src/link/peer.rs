//! Who is at the other end of a Unix socket.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Uid of a Unix socket's peer, as it was when it connected. Not rustix's `socket_peercred`: its pid is never 0, and that
/// of a peer in a namespace that this process does not see is. Errors: the socket's.
pub(super) fn peer_uid(stream: impl AsFd) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, so it is open; the kernel writes at most `len` bytes to `found`, which is a plain
    // struct of that size of integers, and `len` itself.
    let status = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_the_uid_of_its_process() {
        let (left, _right) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&left).unwrap(), rustix::process::getuid().as_raw());
        assert!(peer_uid(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
