//! One daemon a socket, whatever happens around its start and end.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Client, Home, code, refused, wait_for};
use rust_ort::base::ids::ClientId;
use rust_ort::client::Peer;
use rust_ort::protocol::control::{Hello, Notice, Reply, Request, Welcome};
use rust_ort::protocol::frame::{FrameHeader, FrameKind, HEADER_LEN, MAX_BODY_BYTES};
use rust_ort::protocol::message::{ErrorCode, ErrorKind, WireError};
use rust_ort::protocol::wire;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

/// Root is not bound by it, and other users may not see where the program is.
#[test]
fn a_connection_without_a_thread_is_told_which_limit_is_reached_and_the_daemon_serves_on() {
    let mut home = Home::empty();
    if rustix::process::getuid().is_root() {
        home.uid = Some(54_321);
        let program = home.folder.path().join("rust-ort");
        std::fs::copy(&home.program, &program).unwrap();
        home.program = program;
        std::os::unix::fs::chown(home.folder.path(), home.uid, home.uid).unwrap();
    }
    let mut daemon = home.spawn_daemon();
    let status = || home.command().arg("status").output().unwrap();
    wait_for("the daemon answers", || status().status.success().then_some(()));
    // As its user: root may not where it has few capabilities.
    let bound = |soft: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--pid={}", daemon.id())).arg(format!("--nproc={soft}:"));
        if let Some(uid) = home.uid {
            command.uid(uid).gid(uid);
        }
        assert!(command.status().unwrap().success());
    };
    let given = getrlimit(Resource::Nproc).current.map_or("unlimited".to_owned(), |limit| limit.to_string());
    bound("1");
    let refused = status();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(told.contains("no thread") && told.contains("RLIMIT_NPROC is 1 (ulimit -u)"), "{told}");
    bound(&given);
    assert!(status().status.success());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn ten_processes_starting_at_once_leave_one_daemon() {
    let home = Home::empty();
    let mut started: Vec<_> = (0..10).map(|_| home.spawn_daemon()).collect();
    wait_for("nine losers exit", || {
        let ended = started.iter_mut().filter_map(|child| child.try_wait().unwrap()).filter(|status| status.success());
        (ended.count() == 9).then_some(())
    });
    let (_, welcome) = Peer::connect(&home.socket(), "test").unwrap();
    let serving: Vec<u32> =
        started.iter_mut().filter_map(|child| child.try_wait().unwrap().is_none().then(|| child.id())).collect();
    assert_eq!(serving, [welcome.daemon_pid]);
    assert!(home.command().arg("stop").status().unwrap().success());
    for child in &mut started {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn background_returns_when_the_daemon_answers_and_stop_when_it_is_gone() {
    let home = Home::empty();
    for _ in 0..2 {
        assert!(home.command().args(["serve", "--background"]).status().unwrap().success());
        Peer::connect(&home.socket(), "test").unwrap();
    }
    assert!(home.command().arg("stop").status().unwrap().success());
    assert!(!home.socket().exists());
    let status = home.command().arg("status").output().unwrap();
    assert_eq!(status.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&status.stderr).contains("serve --background"));
}

/// Answers one request as the daemon `pid` does.
fn answer(stream: &mut UnixStream, pid: u32) {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; FrameHeader::decode_request(&header, MAX_BODY_BYTES).unwrap().body_bytes as usize];
    stream.read_exact(&mut body).unwrap();
    let (id, request) = wire::decode_request(body.into());
    let reply = match request.unwrap() {
        Request::Hello(_) => Reply::Welcome(Welcome {
            protocol: 1,
            daemon_version: "0.1.0".to_owned(),
            client: ClientId(1),
            daemon_pid: pid,
            log: format!("{pid}.log"),
            pid_namespace: 0,
        }),
        _ => Reply::Done,
    };
    stream.write_all(&wire::encode_reply(id, &reply).unwrap()).unwrap();
}

/// Whoever starts in the moment in which a daemon ends has its socket and its lock.
#[test]
fn stop_does_not_wait_for_the_end_of_a_successor() {
    let home = Home::empty();
    std::fs::create_dir_all(home.socket().parent().unwrap()).unwrap();
    let listener = UnixListener::bind(home.socket()).unwrap();
    let serving = std::thread::spawn(move || {
        for (pid, n_requests) in [(1, 2), (2, 1)] {
            let (mut stream, _) = listener.accept().unwrap();
            (0..n_requests).for_each(|_| answer(&mut stream, pid));
        }
    });
    let said = home.command().arg("stop").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "daemon 1 ended\n", "{said:?}");
    serving.join().unwrap();
}

#[test]
fn serve_beside_a_running_daemon_says_who_serves() {
    let home = Home::new();
    for arguments in [&["serve"][..], &["serve", "--background"]] {
        let output = home.command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("daemon {} serves {} already\n", home.daemon_pid(), home.socket().display()));
    }
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&home.command().args(arguments).arg("--json").output().unwrap().stdout).unwrap()
    };
    let (daemon_pid, socket) = (home.daemon_pid(), home.socket());
    for arguments in [&["serve"][..], &["serve", "--background"]] {
        let expected =
            json!({"schema": "rust_ort/cli/serve/1", "daemon_pid": daemon_pid, "socket": socket, "already": true});
        assert_eq!(json(arguments), expected);
    }
    let other = home.folder.path().join("socket/v2.sock");
    let output = home.command().args(["serve", "--background", "--socket"]).arg(&other).output().unwrap();
    let pid = Peer::connect(&other, "test").unwrap().1.daemon_pid;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("daemon {pid} serves {}\n", other.display()));
    assert!(home.command().args(["stop", "--socket"]).arg(&other).status().unwrap().success());
    let ended = json!({"schema": "rust_ort/cli/stop/1", "daemon_pid": daemon_pid, "socket": socket});
    assert_eq!(json(&["stop"]), ended);
}

/// A reader that has gone is no error: the daemon serves all the same.
#[test]
fn background_without_a_reader_serves() {
    let home = Home::empty();
    let mut child = home.command().args(["serve", "--background"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    Peer::connect(&home.socket(), "test").unwrap();
    assert!(home.command().arg("stop").status().unwrap().success());
}

/// Soft and hard limit of open files.
fn descriptors(pid: u32) -> (String, String) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[test]
fn daemon_and_executors_may_open_as_many_files_as_the_hard_limit_says() {
    let mut home = Home::empty();
    home.ulimit = Some("-Sn 64");
    home.start();
    let mut client = Client::connect(&home);
    for pid in [home.daemon_pid(), client.lease().unwrap().pid] {
        let (soft, hard) = descriptors(pid);
        assert!(soft == hard && hard != "64", "{soft} of {hard}");
    }
}

#[test]
fn a_daemon_out_of_descriptors_says_so_and_serves_on() {
    let mut home = Home::empty();
    home.ulimit = Some("-n 40");
    home.start();
    // Else that makes room in the midst of it, and the next refusals are another row.
    wait_for("who asked whether it serves to be gone", || home.log().contains("client left").then_some(()));
    let mut held = Vec::new();
    let refusal = loop {
        match Peer::connect(&home.socket(), "test") {
            Ok((peer, _)) => held.push(peer),
            Err(error) => break refused(error),
        }
        assert!(held.len() < 40, "more connections than descriptors");
    };
    assert_eq!(refusal.code, ErrorCode::Limit);
    assert!(refusal.message.contains("descriptors") && refusal.message.contains("ulimit -n"), "{refusal}");
    for _ in 0..20 {
        assert_eq!(code(Peer::connect(&home.socket(), "test").unwrap_err()), ErrorCode::Limit);
    }
    assert!(matches!(held[0].ask(&Request::GetStatus), Ok(Reply::Status(_))), "those that are connected are served");
    assert_eq!(home.log().matches("out of descriptors").count(), 1, "{}", home.log());
    held.truncate(held.len() - 2);
    wait_for("a place is free again", || Peer::connect(&home.socket(), "test").ok());
}

#[test]
fn socket_of_a_killed_daemon_is_replaced() {
    let mut home = Home::new();
    home.kill_daemon();
    assert!(home.socket().exists());
    assert!(Peer::connect(&home.socket(), "test").is_err());
    home.start();
    assert_eq!(Peer::connect(&home.socket(), "test").unwrap().1.daemon_pid, home.daemon_pid());
}

#[test]
fn folder_open_to_others_is_refused_with_the_command_that_helps() {
    let home = Home::empty();
    let folder = home.socket().parent().unwrap().to_owned();
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["serve"][..], &["serve", "--background"]] {
        let output = home.command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2));
        assert!(text.contains("got 0755") && text.contains("chmod 700"), "{text}");
    }
}

#[test]
fn sigterm_ends_the_daemon_and_tells_its_clients() {
    let mut home = Home::new();
    let mut client = Client::connect(&home);
    let pid = rustix::process::Pid::from_raw(home.daemon_pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let answer = client.peer.next_answer(std::time::Duration::from_secs(60)).unwrap();
    assert!(matches!(&answer, Some(rust_ort::client::Answer::Notice(Notice::ShuttingDown { .. }))), "{answer:?}");
    assert!(home.wait_daemon().success());
    assert!(!home.socket().exists());
}

#[test]
fn daemon_without_clients_ends_by_itself() {
    let mut home = Home::empty();
    home.idle_timeout_s = 0.5;
    home.start();
    assert!(home.wait_daemon().success());
    assert!(!home.socket().exists());
}

#[test]
fn daemon_with_a_client_does_not_end_by_itself() {
    let mut home = Home::empty();
    home.idle_timeout_s = 0.2;
    home.start();
    let mut client = Client::connect(&home);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(matches!(client.peer.ask(&Request::GetStatus), Ok(Reply::Status(_))));
}

#[test]
fn another_version_is_told_both_versions() {
    let home = Home::new();
    let mut peer = Peer::connect_raw(&home.socket()).unwrap();
    let hello = Hello { protocol: 99, shim_version: "7.0.0".into(), ..Hello::default() };
    let error = refused(peer.ask(&Request::Hello(hello)).unwrap_err());
    assert_eq!(error.code, ErrorCode::ProtocolVersion);
    assert!(error.message.contains("speaks 1") && error.message.contains("speaks 99"), "{error}");

    let mut peer = Peer::connect_raw(&home.socket()).unwrap();
    let mut header = FrameHeader { kind: FrameKind::Request, body_bytes: 0 }.encode();
    header[4] = 42;
    peer.send_raw(&header, None).unwrap();
    let error = refused(peer.ask(&Request::GetStatus).unwrap_err());
    assert_eq!(error.code, ErrorCode::ProtocolVersion);
    assert!(error.message.contains("speaks 1") && error.message.contains("speaks 42"), "{error}");
}

#[test]
fn request_before_hello_is_refused_and_hello_still_welcome() {
    let home = Home::new();
    let mut peer = Peer::connect_raw(&home.socket()).unwrap();
    let error = refused(peer.ask(&Request::GetStatus).unwrap_err());
    assert!(error.code == ErrorCode::BadState && error.message.contains("Hello"), "{error}");
    let hello = || Request::Hello(Hello { protocol: 1, ..Hello::default() });
    assert!(matches!(peer.ask(&hello()), Ok(Reply::Welcome(_))));
    assert_eq!(code(peer.ask(&hello()).unwrap_err()), ErrorCode::BadState);
}

#[test]
fn stop_is_refused_while_others_are_connected_unless_forced() {
    let mut home = Home::new();
    let _client = Client::connect(&home);
    let output = home.command().arg("stop").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
    assert!(home.command().args(["stop", "--force"]).status().unwrap().success());
    assert!(home.wait_daemon().success());
}

#[test]
fn mute_socket_is_named() {
    let home = Home::empty();
    rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    let _mute = UnixListener::bind(home.socket()).unwrap();
    let output = home.command().arg("status").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody answers"), "{output:?}");
}

#[test]
fn socket_file_without_the_lock_is_a_leftover() {
    let home = Home::empty();
    let folder = home.socket().parent().unwrap().to_owned();
    rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    // Whoever serves holds the lock; nobody does. The listener's file outlives it.
    drop(UnixListener::bind(home.socket()).unwrap());
    let mut home = home;
    home.start();
    assert!(folder.join("v1.sock.lock").exists());
    assert_eq!(home.status()["daemon"]["pid"], home.daemon_pid());
}

/// What `rust-ort serve` says to this socket, which it must refuse.
fn refused_to_serve(home: &Home, socket: &Path) -> String {
    for arguments in [&["serve", "--idle-timeout-s", "0.2"][..], &["serve", "--background", "--idle-timeout-s", "0.2"]]
    {
        let output = home.command().args(arguments).arg("--socket").arg(socket).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(socket.to_str().unwrap()) && text.contains("RUST_ORT_SOCKET"), "{arguments:?}: {text}");
    }
    let output = home.command().arg("serve").arg("--socket").arg(socket).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_no_socket_is_refused_and_stays() {
    let home = Home::empty();
    let folder = rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    let place = |name: &str| folder.join(name);
    std::fs::write(place("thesis.txt"), "years of work").unwrap();
    std::fs::create_dir(place("folder")).unwrap();
    std::fs::write(place("folder/inside"), "kept").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place("fifo"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    drop(UnixListener::bind(place("leftover")).unwrap());
    std::os::unix::fs::symlink(place("leftover"), place("link")).unwrap();
    std::os::unix::fs::symlink(place("nowhere"), place("dangling")).unwrap();
    let before = names(&folder);
    for (name, kind) in [
        ("thesis.txt", "a file"),
        ("folder", "a folder"),
        ("fifo", "a FIFO"),
        ("link", "a link"),
        ("dangling", "a link"),
    ] {
        let said = refused_to_serve(&home, &place(name));
        assert!(said.contains(kind), "{name}: {said}");
    }
    assert_eq!(names(&folder), before, "nothing came and nothing went");
    assert_eq!(std::fs::read_to_string(place("thesis.txt")).unwrap(), "years of work");
    assert_eq!(std::fs::read_to_string(place("folder/inside")).unwrap(), "kept");
}

#[test]
fn a_socket_that_another_program_serves_is_refused_and_stays() {
    let home = Home::empty();
    rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    let other = UnixListener::bind(home.socket()).unwrap();
    other.set_nonblocking(true).unwrap();
    let output = home.command().args(["serve", "--idle-timeout-s", "0.2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("another program") && text.contains("RUST_ORT_SOCKET"), "{text}");
    std::os::unix::net::UnixStream::connect(home.socket()).unwrap();
}

#[test]
fn a_lock_file_that_is_not_ours_is_refused_and_stays() {
    let home = Home::empty();
    let folder = rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    let place = |name: &str| folder.join(name);
    std::fs::write(place("cargo.sock.lock"), "version = 4").unwrap();
    std::fs::create_dir(place("folder.sock.lock")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place("fifo.sock.lock"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .unwrap();
    std::os::unix::fs::symlink(place("nowhere"), place("link.sock.lock")).unwrap();
    let before = names(&folder);
    for (socket, what) in [
        ("cargo.sock", "cargo.sock.lock"),
        ("folder.sock", "folder.sock.lock"),
        ("fifo.sock", "fifo.sock.lock"),
        ("link.sock", "link.sock.lock"),
        ("own.lock", "own.lock"),
    ] {
        let said = refused_to_serve(&home, &place(socket));
        assert!(said.contains(what), "{socket}: {said}");
    }
    assert_eq!(names(&folder), before, "nothing came and nothing went");
    assert_eq!(std::fs::read_to_string(place("cargo.sock.lock")).unwrap(), "version = 4");
}

#[test]
fn sockets_that_differ_in_the_extension_alone_have_a_daemon_each() {
    let mut home = Home::empty();
    home.idle_timeout_s = 20.;
    let folder = rust_ort::daemon::paths::prepare_socket_folder(&home.socket()).unwrap();
    let sockets = ["rank.0", "rank.1"].map(|name| folder.join(name));
    let run = |arguments: &[&str], socket: &Path| {
        let output = home.command().args(arguments).arg("--socket").arg(socket).output().unwrap();
        assert!(output.status.success(), "{arguments:?} {}: {output:?}", socket.display());
    };
    sockets.iter().for_each(|socket| run(&["serve", "--background"], socket));
    let pids = sockets.each_ref().map(|socket| Peer::connect(socket, "test").unwrap().1.daemon_pid);
    assert_ne!(pids[0], pids[1]);
    sockets.iter().for_each(|socket| run(&["stop"], socket));
}

#[test]
fn a_file_put_in_the_sockets_place_outlives_the_daemon() {
    let mut home = Home::new();
    // At once: a daemon whose socket is gone for a moment makes another one.
    let mine = home.socket().with_extension("mine");
    std::fs::write(&mine, "mine").unwrap();
    std::fs::rename(&mine, home.socket()).unwrap();
    let pid = rustix::process::Pid::from_raw(home.daemon_pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(home.wait_daemon().success());
    assert_eq!(std::fs::read_to_string(home.socket()).unwrap(), "mine");
}

#[test]
fn a_starting_daemon_keeps_the_newest_logs_of_earlier_ones() {
    let mut home = Home::empty();
    let logs = home.state().join("log");
    std::fs::create_dir_all(&logs).unwrap();
    // No process has a number that high.
    (0..30).for_each(|n| std::fs::write(logs.join(format!("daemon-{}.log", (1 << 23) + n)), "").unwrap());
    std::fs::write(logs.join("notes.txt"), "").unwrap();
    home.start();
    assert_eq!(std::fs::read_dir(&logs).unwrap().count(), 20 + 2, "and its own, and what is not a log");
    assert!(home.log().contains("old state removed"), "{}", home.log());
}

#[test]
fn a_refusal_that_came_before_the_question_is_heard() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("v1.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut peer = Peer::connect_raw(&socket).unwrap();
    let refusal = WireError::new(ErrorKind::Client, ErrorCode::Permission, "not yours");
    let (mut daemon, _) = listener.accept().unwrap();
    daemon.write_all(&wire::encode_reply(0, &Reply::Error(refusal)).unwrap()).unwrap();
    drop(daemon);
    assert_eq!(code(peer.ask(&Request::GetStatus).unwrap_err()), ErrorCode::Permission);
}

const AS_OTHER_USER: &str = "RUST_ORT_TEST_OTHER_USER_CONNECTS_TO";
const NOBODY: u32 = 65_534;

/// Not a test: the other user's process is this binary, asked for this test alone.
#[test]
fn the_other_user_itself() {
    if let Some(socket) = std::env::var_os(AS_OTHER_USER) {
        let error = Peer::connect(Path::new(&socket), "other user").unwrap_err().to_string();
        assert!(error.contains("uid 0, expected 65534: it is not yours"), "{error}");
        // Who does not ask whose the daemon is hears it from the daemon.
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("uid 65534") && answer.contains("start one of your own"), "{answer}");
    }
}

#[test]
fn another_user_is_told_that_the_daemon_is_not_his() {
    if !rustix::process::getuid().is_root() {
        // Not eprintln!: a skip is shown of a passing test, too.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: only root can connect as another user\n");
        return;
    }
    let home = Home::new();
    // Open what keeps others out before the daemon is even asked.
    for (path, mode) in
        [(home.folder.path(), 0o755), (&home.folder.path().join("socket"), 0o755), (&home.socket(), 0o777)]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = home.folder.path().join("other_user");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut other = Command::new(program);
    other.args(["start::the_other_user_itself", "--exact"]).env(AS_OTHER_USER, home.socket()).current_dir("/");
    let output = other.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
