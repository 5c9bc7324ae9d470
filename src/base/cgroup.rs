//! What this process's control groups say.

use std::path::Path;

/// Texts of the files that a controller may have for this process, its own group first, then those above it; those that
/// cannot be read are left out. name: of the file in version 2 and in version 1.
pub(super) fn texts(controller: &str, name: [&str; 2]) -> impl Iterator<Item = String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    files(&groups, controller, name).into_iter().filter_map(|file| std::fs::read_to_string(file).ok())
}

/// Their paths, from the text of /proc/self/cgroup. In a container the path there may be that of the host, of which the
/// container sees its own group alone: as the last.
fn files(groups: &str, controller: &str, [v2, v1]: [&str; 2]) -> Vec<String> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?.to_owned());
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup".to_owned(), v2),
            some if some.split(',').any(|name| name == controller) => (format!("/sys/fs/cgroup/{controller}"), v1),
            _ => return None,
        };
        let groups = Path::new(&path).ancestors().map(|group| group.display().to_string()).collect::<Vec<_>>();
        Some(groups.into_iter().map(move |group| format!("{mount}{}/{file}", group.trim_end_matches('/'))))
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

/// How many processes and threads the groups of this process may have; None where nothing bounds them, or nothing tells.
/// Source: the kernel's cgroup-v2.rst (pids.max) and cgroup-v1/pids.rst, which calls it the same.
pub(super) fn pids_max() -> Option<u64> {
    texts("pids", ["pids.max"; 2]).filter_map(|text| text.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_of_the_group_and_of_all_above_it_of_both_kinds_of_cgroups() {
        let found =
            files("8:cpu,memory:/a/b\n1:pids:/\n0::/a b:c\n", "memory", ["memory.events", "memory.oom_control"]);
        let (v1, v2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        let expected = [
            format!("{v1}/a/b/memory.oom_control"),
            format!("{v1}/a/memory.oom_control"),
            format!("{v1}/memory.oom_control"),
            format!("{v2}/a b:c/memory.events"),
            format!("{v2}/memory.events"),
        ];
        assert_eq!(found, expected);
        assert_eq!(files("1:pids:/\n", "pids", ["pids.max"; 2]), ["/sys/fs/cgroup/pids/pids.max"]);
        assert_eq!(files("", "pids", ["pids.max"; 2]), [""; 0]);
    }
}
