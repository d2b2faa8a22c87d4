//! Runs a hostile program and looks afterwards whether anything of it is left.

use std::future::{Future, pending};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, process};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use windlass_exec::{Ended, Job, Limits, Program, Stop, run};

/// Long enough for anything to happen on a busy machine. Nobody waits that long unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A binary that calls `shim_main`.
pub const PROBE: &str = env!("CARGO_BIN_EXE_windlass-exec-probe");

pub fn program(words: &[&str]) -> Program {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    Program::parse(&quoted.join(" ")).unwrap().kept_by(PROBE)
}

pub fn sh(script: &str) -> Program {
    program(&["sh", "-c", script])
}

pub fn python(script: &str) -> Program {
    program(&["python3", "-c", script])
}

pub fn impatient() -> Limits {
    Limits { kill_grace: Duration::from_millis(300), ..Limits::default() }
}

/// Runs it with what the defaults are, and checks that nothing is left.
pub async fn run_to_end(program: &Program) -> Ended {
    Trial::new().run(program, &impatient(), pending()).await
}

/// A run whose processes can be recognised, with a folder of its own.
pub struct Trial {
    mark: String,
    pub folder: PathBuf,
    pub job: Job,
}

impl Trial {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("windlass-exec-{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir(&folder).unwrap();
        let job = Job {
            environment: vec![
                ("TRIAL".to_owned(), name.clone()),
                ("FOLDER".to_owned(), folder.to_str().unwrap().to_owned()),
            ],
            ..Job::default()
        };
        Self { mark: format!("TRIAL={name}"), folder, job }
    }

    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.job.timeout = Some(timeout);
        self
    }

    pub fn with_input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.job.input = input.into();
        self
    }

    /// Runs to the end, after which nothing may be left: neither with the mark, nor of the processes that the program
    /// wrote into `$FOLDER/pids` because they wipe their environment.
    pub async fn run(&self, program: &Program, limits: &Limits, stop: impl Future<Output = Stop>) -> Ended {
        let ended = tokio::time::timeout(PATIENCE, run(program, self.job.clone(), limits, stop))
            .await
            .expect("the run does not end");
        assert_eq!(self.left(), Vec::<String>::new(), "left running after {}", ended.how);
        assert_eq!(ended.left_running, 0);
        ended
    }

    /// What is left of the program.
    pub fn left(&self) -> Vec<String> {
        let written = fs::read_to_string(self.folder.join("pids")).unwrap_or_default();
        let known: Vec<&str> = written.split_whitespace().collect();
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                known.contains(&pid.as_str()) || environment.split(|&b| b == 0).any(|e| e == self.mark.as_bytes())
            })
            .filter_map(|pid| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                // Somebody else's zombie is nothing that runs.
                (!stat.rsplit_once(") ")?.1.starts_with('Z')).then_some(stat)
            })
            .collect()
    }

    /// For what happens without anybody to wait for: a dropped run, a killed worker.
    pub async fn nothing_is_left_soon(&self) {
        let gone = async {
            while !self.left().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, gone).await.is_ok();
        assert!(in_time, "still running: {:?}", self.left());
    }

    /// A named pipe `$FOLDER/ready`, by which the program says that it has come to a certain point.
    pub fn ready(&self) -> Ready {
        let path = self.folder.join("ready");
        assert!(process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Ready { pipe: pipe::OpenOptions::new().read_write(true).open_receiver(path).unwrap() }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

pub struct Ready {
    pipe: pipe::Receiver,
}

impl Ready {
    /// Waits for the program's line.
    pub async fn wait(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let byte = tokio::time::timeout(PATIENCE, self.pipe.read_u8()).await.expect("the program is not ready");
            line.push(byte.unwrap());
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }
}
