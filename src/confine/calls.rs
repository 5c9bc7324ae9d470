//! System calls: seccomp. What is refused is listed, not what is taken: the runtime, libraries of custom operators and the C
//! library make others with each version, and one that is refused by mistake would be a wrong answer. But for `ioctl`: of its
//! requests a list is taken, since each driver and file system has others.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// The network, and what makes system calls in the place of the process. Sockets that it was given stay usable.
const NETWORK: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Other programs and processes: starting them, reading and writing their memory, taking their descriptors, memory and
/// queues that they share by a number; and leaving one's own session, group or user, by which whoever started a process
/// ends it, and it ends with that one.
const PROCESSES: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_tkill,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// Those whose first argument is a process. A process's own number is let through: `abort` sends itself a signal.
const TO_A_PROCESS: &[c_long] =
    &[libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];

/// What changes files by their paths and is not Landlock's, or watches folders that may not be read. libc has no name for the last four on all machines, which share
/// their numbers: fchmodat2, setxattrat, removexattrat, file_setattr.
const FILES: &[c_long] = &[
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    452,
    463,
    466,
    469,
];

/// The machine, and doors into the kernel that no computation needs: for those whose user is root.
const MACHINE: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    467, // open_tree_attr
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Those that only this machine has.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_inotify_init,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// x86-64 knows calls by a second set of numbers, with this bit.
const X32: c_long = 0x4000_0000;
/// Numbers of that set alone: rt_sigqueueinfo, rt_tgsigqueueinfo, ioctl, execve, ptrace, process_vm_readv and
/// process_vm_writev, mq_notify, kexec_load, execveat.
const OF_X32: &[c_long] = &[514, 520, 521, 524, 527, 528, 536, 539, 540, 545];

/// Requests of a descriptor that are taken, all others not: of them are some that need no more than a file open for reading,
/// and change its flags, version or verity, type into the terminal as its user would, or have the kernel send signals. These
/// are what the C library, Rust and ONNX Runtime ask: whether it is a terminal (TCGETS, TCGETS2), its size (TIOCGWINSZ), how
/// much can be read (FIONREAD), and not to wait (FIONBIO) nor to be inherited, or to be (FIOCLEX, FIONCLEX).
const OF_DESCRIPTORS: [u64; 7] = [0x5401, 0x802c_542a, 0x5413, 0x541b, 0x5421, 0x5451, 0x5450];

/// What a process may not set of itself: that no signal comes when its parent has gone (PR_SET_PDEATHSIG).
const OF_ITSELF: u64 = 1;

/// Commands that have the kernel send signals to others, or have others wait: F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE
/// (who opens the file waits for 45 s), F_NOTIFY.
const SIGNALS: [u64; 5] = [8, 10, 15, 1024, 1026];

/// Commands that lock files: F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
const LOCKS: [u64; 4] = [6, 7, 37, 38];

/// Refuses what is listed, with EPERM, to the calling thread and those that it starts. locks: files may be locked, as who
/// writes some does. Errors: why it did not.
pub(super) fn refuse(locks: bool) -> Result<(), String> {
    let compiled = || -> Result<[BpfProgram; 2], BackendError> {
        // The C library then makes threads by `clone`, whose flags a filter sees.
        let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
        let machine = std::env::consts::ARCH.try_into()?;
        Ok([compiled(absent, libc::ENOSYS, machine)?, compiled(rules(locks)?, libc::EPERM, machine)?])
    };
    let programs = compiled().map_err(|error| error.to_string())?;
    let applied = programs.iter().try_for_each(|program| apply_filter(program));
    applied.map_err(|error| format!("the kernel takes no seccomp filter: {error}"))
}

fn compiled(mut rules: Rules, errno: c_int, machine: TargetArch) -> Result<BpfProgram, BackendError> {
    if machine == TargetArch::x86_64 {
        let same: Rules = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(same);
        rules.extend(OF_X32.iter().map(|call| (call | X32, Vec::new())));
    }
    let refused = SeccompAction::Errno(errno as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refused, machine)?.try_into()
}

fn rules(locks: bool) -> Result<Rules, BackendError> {
    let lists = [NETWORK, PROCESSES, FILES, MACHINE, OLD];
    let mut rules: Rules = lists.into_iter().flatten().map(|&call| (call, Vec::new())).collect();
    let is = |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let other = |process: u64| SeccompRule::new(vec![is(0, SeccompCmpOp::Ne, process)?]);
    for &call in TO_A_PROCESS {
        rules.insert(call, vec![other(std::process::id().into())?]);
    }
    // 0 is the process itself.
    rules.insert(libc::SYS_prlimit64, vec![other(0)?]);
    let no_thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64);
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is(0, no_thread, 0)?])?]);
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, OF_ITSELF)?])?]);
    let another = OF_DESCRIPTORS.into_iter().map(|request| is(1, SeccompCmpOp::Ne, request));
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(another.collect::<Result<_, _>>()?)?]);
    let second = |value| SeccompRule::new(vec![is(1, SeccompCmpOp::Eq, value)?]);
    let mut commands = SIGNALS.to_vec();
    if !locks {
        rules.insert(libc::SYS_flock, Vec::new());
        commands.extend(LOCKS);
    }
    rules.insert(libc::SYS_fcntl, commands.into_iter().map(second).collect::<Result<_, _>>()?);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    /// What a confined thread gets of each.
    fn confined<T: Send>(does: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    refuse(false).unwrap();
                    does()
                })
                .join()
                .unwrap()
        })
    }

    fn errno<T>(outcome: io::Result<T>) -> Option<i32> {
        outcome.err().and_then(|error| error.raw_os_error())
    }

    /// By their numbers here: a jump that is too far, or a comparison that cannot be made, is a matter of the machine too.
    #[test]
    fn the_filter_is_made_for_each_machine() {
        let len = |machine| compiled(rules(false).unwrap(), libc::EPERM, machine).unwrap().len();
        let [x86, arm] = [TargetArch::x86_64, TargetArch::aarch64].map(len);
        assert!(arm > NETWORK.len() + PROCESSES.len() + FILES.len() + MACHINE.len(), "{arm}");
        assert!(x86 > arm, "x86-64 has a second set of numbers: {x86} and {arm}");
        let [x86, arm] = [TargetArch::x86_64, TargetArch::aarch64]
            .map(|machine| compiled(rules(false).unwrap(), libc::EPERM, machine).unwrap()[1].k);
        assert_ne!(x86, arm, "each asks for its own machine first");
    }

    #[test]
    fn no_socket_is_made_and_those_that_are_open_serve() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let got = confined(|| {
            io::Write::write_all(&mut &theirs, b"still").unwrap();
            let tcp = [errno(TcpStream::connect("127.0.0.1:1")), errno(TcpListener::bind("127.0.0.1:0"))];
            (tcp, errno(UnixStream::connect(&path)))
        });
        assert_eq!(got, ([Some(libc::EPERM); 2], Some(libc::EPERM)));
        let mut heard = [0; 5];
        io::Read::read_exact(&mut &ours, &mut heard).unwrap();
        assert_eq!(&heard, b"still");
    }

    /// What a writer of a dump, or the next daemon, would wait for.
    #[test]
    fn no_file_is_locked() {
        use rustix::fs::{FlockOperation::NonBlockingLockShared, fcntl_lock, flock};
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let got = confined(|| {
            let locked = [flock(&file, NonBlockingLockShared), fcntl_lock(&file, NonBlockingLockShared)];
            locked.map(|locked| locked.map_err(|error| error.raw_os_error()))
        });
        assert_eq!(got, [Err(libc::EPERM); 2]);
        flock(&other, NonBlockingLockShared).unwrap();
    }

    /// Its attributes can be set by a descriptor that only reads.
    #[test]
    fn a_file_that_is_read_keeps_its_attributes_and_answers_what_a_library_asks() {
        use rustix::fs::{IFlags, ioctl_ficlone, ioctl_getflags, ioctl_setflags};
        use rustix::io::{Errno, ioctl_fioclex, ioctl_fionbio, ioctl_fionread};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "read").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let got = confined(|| {
            use std::io::IsTerminal as _;
            let refused = [ioctl_setflags(&file, IFlags::NODUMP), ioctl_ficlone(&file, &file)];
            let asked = [ioctl_fionbio(&ours, true), ioctl_fioclex(&file), ioctl_fionread(&file).map(drop)];
            let terminal = [rustix::termios::tcgetattr(&file).err(), rustix::termios::tcgetwinsize(&file).err()];
            (refused, ioctl_getflags(&file).err(), asked, terminal, file.is_terminal())
        });
        assert_eq!(got, ([Err(Errno::PERM); 2], Some(Errno::PERM), [Ok(()); 3], [Some(Errno::NOTTY); 2], false));
        if let Ok(flags) = ioctl_getflags(&file) {
            assert!(!flags.contains(IFlags::NODUMP));
        }
    }

    /// The parent ends it by its id, its terminal by its group, and the kernel when the parent has gone.
    #[test]
    fn whoever_started_it_still_ends_it() {
        use rustix::process::{Pid, Signal, getpgrp, set_parent_process_death_signal, setpgid, setsid};
        let got = confined(|| {
            let kept = [set_parent_process_death_signal(None), set_parent_process_death_signal(Some(Signal::KILL))];
            (kept, setsid().err(), setpgid(None::<Pid>, Some(getpgrp())).err())
        });
        let refused = rustix::io::Errno::PERM;
        assert_eq!(got, ([Err(refused); 2], Some(refused), Some(refused)));
    }

    #[test]
    fn no_folder_is_watched() {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watching = init(CreateFlags::empty()).unwrap();
        let got = confined(|| {
            let made = init(CreateFlags::empty()).err();
            (made, add_watch(&watching, "/", WatchFlags::ALL_EVENTS).err())
        });
        assert_eq!(got, (Some(rustix::io::Errno::PERM), Some(rustix::io::Errno::PERM)));
    }

    #[test]
    fn requests_and_what_a_process_may_not_set_are_the_kernels() {
        use libc::{FIOCLEX, FIONBIO, FIONCLEX, FIONREAD, TCGETS, TCGETS2, TIOCGWINSZ};
        assert_eq!(OF_DESCRIPTORS, [TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX].map(u64::from));
        assert_eq!(OF_ITSELF, libc::PR_SET_PDEATHSIG as u64);
    }

    #[test]
    fn commands_of_descriptors_are_the_kernels() {
        let expected = [libc::F_SETOWN, 10, 15, libc::F_SETLEASE, libc::F_NOTIFY].map(|command| command as u64);
        assert_eq!(SIGNALS, expected);
        assert_eq!(LOCKS, [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW].map(|c| c as u64));
    }

    #[test]
    fn no_program_starts_and_threads_do() {
        let (program, thread) = confined(|| {
            let program = Command::new("/bin/true").status();
            (errno(program), std::thread::spawn(|| Command::new("/bin/true").status().is_err()).join().unwrap())
        });
        assert_eq!((program, thread), (Some(libc::EPERM), true));
        assert!(Command::new("/bin/true").status().unwrap().success(), "other threads are as free as before");
    }

    #[test]
    fn files_keep_their_facts_and_other_processes_get_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "whole").unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let own = rustix::process::getpid();
        let got = confined(|| {
            use rustix::fs::{Mode, chmod};
            use rustix::process::{Signal, kill_process, test_kill_process};
            let mode = chmod(&path, Mode::empty()).map_err(|error| error.raw_os_error());
            let kill = kill_process(pid, Signal::KILL).map_err(|error| error.raw_os_error());
            (mode, kill, test_kill_process(own))
        });
        assert_eq!(got, (Err(libc::EPERM), Err(libc::EPERM), Ok(())));
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
