//! Independent pieces of work, shared among threads where they are large.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Below so many bytes one thread does it.
const PARALLEL_BYTES: usize = 4 << 20;
const MAX_THREADS: usize = 8;

/// What `work` gives of each of `0..n`, in their order. `len_bytes`: what all of it reads. Works alone where no thread can
/// be made.
pub fn in_parallel<T: Send>(n: usize, len_bytes: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = if len_bytes < PARALLEL_BYTES { 1 } else { n_threads().min(n) };
    if threads <= 1 {
        return (0..n).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let several = || {
        let indices = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&index| index < n);
        indices.map(|index| (index, work(index))).collect::<Vec<_>>()
    };
    let mut done = thread::scope(|scope| {
        // Where the system gives no more threads, those that there are do it.
        let helper = |_| thread::Builder::new().spawn_scoped(scope, several).ok();
        let helpers: Vec<_> = (1..threads).map_while(helper).collect();
        let mut done = several();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, found)| found).collect()
}

fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn results_come_in_order_however_many_threads_there_are() {
        for len_bytes in [0, PARALLEL_BYTES] {
            for n in [0, 1, 2, 1000] {
                let expected: Vec<_> = (0..n).map(|index| index * 2).collect();
                assert_eq!(in_parallel(n, len_bytes, |index| index * 2), expected);
            }
        }
    }

    #[test]
    fn a_panic_of_a_thread_is_the_callers() {
        let run = || in_parallel(100, PARALLEL_BYTES, |index| assert!(index < 99, "the last"));
        assert!(std::panic::catch_unwind(run).is_err());
    }

    const ALONE: &str = "RUST_ORT_TEST_WITHOUT_THREADS";

    #[test]
    fn where_no_thread_can_be_made_one_does_it() {
        if std::env::var_os(ALONE).is_some() {
            assert!(thread::Builder::new().spawn(|| ()).is_err());
            assert_eq!(
                in_parallel(100, PARALLEL_BYTES, |index| index * 2),
                (0..100).map(|n| n * 2).collect::<Vec<_>>()
            );
            println!("done alone");
            return;
        }
        // Root is not limited, and others may not see where this program is. One test at a time is run by the first thread.
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.path().join("tests");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let name =
            "base::parallel::tests::where_no_thread_can_be_made_one_does_it --exact --nocapture --test-threads=1";
        let script = format!("ulimit -u 1 && {ALONE}=1 exec {} {name}", program.display());
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", &script];
        let command = if rustix::process::getuid().is_root() { &nobody[..] } else { &nobody[4..] };
        let output = std::process::Command::new(command[0]).args(&command[1..]).current_dir("/").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("done alone"), "{output:?}");
    }
}
