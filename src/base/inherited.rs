//! What a process has of whoever started it: descriptors, and what it does at a signal.

/// To be called first. No child gets a descriptor that this process was started with beyond its standard streams (one of a
/// shell, a socket among them, would be open in what is confined), and a file that may not grow (`ulimit -f`) is an error
/// of the write, where the kernel would end the process.
pub fn leave_behind() {
    // SAFETY: both calls take numbers alone. SIGXFSZ has no handler of ours that this could take away, and a descriptor
    // stays open here, whoever owns it: it is the next program that does not get it. A kernel before 5.11 refuses the
    // flag, and nothing is changed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::process::Command;

    use rustix::io::{FdFlags, fcntl_setfd};

    #[test]
    fn a_child_has_no_descriptor_that_was_here_before() {
        let file = File::open("/dev/null").unwrap();
        fcntl_setfd(file.as_fd(), FdFlags::empty()).unwrap();
        let n_open = || {
            let listed = Command::new("sh").args(["-c", "ls /proc/$$/fd | wc -l"]).output().unwrap();
            String::from_utf8(listed.stdout).unwrap().trim().parse::<usize>().unwrap()
        };
        let before = n_open();
        super::leave_behind();
        assert!(n_open() < before, "{} of {before}", n_open());
        drop(file);
    }
}
