//! Independent tasks on all cores. What comes back is in the order of the tasks, whoever did them.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Silent,
    /// One line on standard error, written over.
    Terminal,
}

impl Progress {
    pub(super) fn if_terminal() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Terminal
        } else {
            Self::Silent
        }
    }

    fn show(self, line: &str) {
        if self == Self::Terminal {
            // A terminal that went away is no reason to end.
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
        }
    }
}

/// The results of `work` on each task.
pub(super) fn map<Task: Sync, Done: Send>(
    tasks: &[Task],
    threads: usize,
    progress: Progress,
    work: impl Fn(&Task) -> Done + Sync,
) -> Vec<Done> {
    let next = AtomicUsize::new(0);
    let (done, results) = sync_channel(tasks.len());
    let mut ordered: Vec<Option<Done>> = tasks.iter().map(|_| None).collect();
    progress.show(&format!("0 of {}", tasks.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            let (done, next, work) = (done.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(at) else {
                        return;
                    };
                    if done.send((at, work(task))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (count, (at, result)) in results.iter().enumerate() {
            ordered[at] = Some(result);
            progress.show(&format!("{} of {}", count + 1, tasks.len()));
        }
    });
    progress.show("");
    ordered
        .into_iter()
        .map(|result| result.expect("every task was taken by somebody"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Progress, map};

    #[test]
    fn results_keep_the_order_of_their_tasks_on_any_number_of_threads() {
        let tasks: Vec<u64> = (0..100).collect();
        for threads in [0, 1, 2, 7, 200] {
            let results = map(&tasks, threads, Progress::Silent, |task| task * task);
            let expected: Vec<u64> = tasks.iter().map(|task| task * task).collect();
            assert_eq!(results, expected, "{threads} threads");
        }
        assert!(map(&[0_u8; 0], 2, Progress::Silent, |task| *task).is_empty());
    }
}
