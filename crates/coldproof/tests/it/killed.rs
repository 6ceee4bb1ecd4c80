//! A run that is killed at any point leaves no verdict that says pass; an engine that is killed is
//! a finding.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{coldproof, findings, fixture};

/// The lane with all eight steps of an update, which has a cold engine too.
const LANE: &str = "composite";
const FILES: [&str; 3] = ["verdict.json", "junit.xml", "evidence.jsonl"];
const KILLS: usize = 200;

/// A folder of results, and one for everything that the run makes besides.
struct Place {
    out: tempfile::TempDir,
    scratch: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { out: tempfile::tempdir().unwrap(), scratch: tempfile::tempdir().unwrap() }
    }

    fn start(&self, lane: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_coldproof"))
            .args(["prove", "--format", "json", "--lane", lane, "--from"])
            .arg(fixture("llama/A"))
            .arg("--to")
            .arg(fixture("llama/B"))
            .arg("--out")
            .arg(self.out.path())
            .env("TMPDIR", self.scratch.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs_err::read(self.file(name)).ok()
    }

    fn has_begun(&self) -> bool {
        fs_err::read_dir(self.scratch.path()).unwrap().next().is_some()
    }
}

/// What an earlier run left: its verdict says pass, or fail.
struct Earlier([Vec<u8>; 3]);

impl Earlier {
    fn of(place: &Place, pass: bool) -> Self {
        let mut files = FILES.map(|name| place.read(name).unwrap());
        let verdict = String::from_utf8(files[0].clone()).unwrap();
        assert!(verdict.contains(r#""verdict": "pass""#), "{verdict}");
        if !pass {
            files[0] = verdict.replacen(r#""verdict": "pass""#, r#""verdict": "fail""#, 1).into();
        }
        // Told from what a new run writes.
        files[2].push(b'\n');
        Self(files)
    }

    fn lay(&self, place: &Place) {
        for (name, bytes) in FILES.iter().zip(&self.0) {
            fs_err::write(place.file(name), bytes).unwrap();
        }
    }
}

/// Numbers from 0 to 1 that depend on the seed alone.
fn drawn(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as f64 / f64::from(1_u32 << 31)
}

/// What a kill met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// The run had not taken the folder: all is of the run before.
    Untouched,
    /// No verdict.
    Under,
    /// The run had ended, and its verdict is there with its evidence.
    Ended,
}

/// Starts a run on what an earlier one left, kills it after `delay`, and looks at the folder.
fn kill_after(delay: Duration, earlier: &Earlier) -> Met {
    let place = Place::new();
    earlier.lay(&place);
    let mut child = place.start(LANE);
    std::thread::sleep(delay);
    // A run that has ended by itself cannot be killed.
    let _ = child.kill();
    child.wait().unwrap();
    for entry in fs_err::read_dir(place.out.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(FILES.contains(&name.trim_end_matches(".partial")), "{name}");
    }
    let [_, _, old] = &earlier.0;
    let same = place.read("evidence.jsonl").unwrap() == *old;
    let Some(verdict) = place.read("verdict.json") else {
        // A report alone is that of the new evidence.
        assert!(!same || place.read("junit.xml").is_none(), "after {delay:?}");
        return Met::Under;
    };
    if verdict == earlier.0[0] {
        assert!(same && !place.has_begun(), "after {delay:?}: an old verdict of a run under way");
        return Met::Untouched;
    }
    assert!(!same, "after {delay:?}: a verdict without its evidence");
    let verdict: Value = serde_json::from_slice(&verdict).expect("a verdict is whole or absent");
    let evidence = place.file("evidence.jsonl");
    let again = coldproof(&["check", "--format=json", evidence.to_str().unwrap()]);
    assert_eq!((again.code, again.json()), (0, verdict), "after {delay:?}");
    Met::Ended
}

#[test]
fn a_run_that_is_killed_anywhere_leaves_no_verdict_that_says_pass() {
    let place = Place::new();
    let began = Instant::now();
    let ended = place.start(LANE).wait_with_output().unwrap();
    let whole = began.elapsed();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    // One point in each of the equal parts of the run's own duration, and some beyond its end.
    let mut seed = 5;
    let part = whole.mul_f64(1.1 / KILLS as f64);
    let points: Vec<Duration> =
        (0..KILLS).map(|at| part.mul_f64(at as f64 + drawn(&mut seed))).collect();
    let met: Vec<Met> = std::thread::scope(|scope| {
        let halves: Vec<_> = [0, 1]
            .map(|first| {
                let (points, earlier) = (&points, Earlier::of(&place, first == 0));
                scope.spawn(move || {
                    let own = points.iter().skip(first).step_by(2);
                    own.map(|&point| kill_after(point, &earlier)).collect::<Vec<_>>()
                })
            })
            .into();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    assert_eq!(met.len(), KILLS);
    let under = met.iter().filter(|&&met| met == Met::Under).count();
    assert!(under > KILLS / 2, "{under} of {KILLS} kills met a run under way");
}

#[test]
fn a_folder_that_a_killed_run_left_is_taken_again() {
    let place = Place::new();
    for partial in FILES {
        fs_err::write(place.file(&format!("{partial}.partial")), r#"{"verdict":"pa"#).unwrap();
    }
    let ended = place.start("caches").wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    let mut names: Vec<String> = fs_err::read_dir(place.out.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["evidence.jsonl", "junit.xml", "verdict.json"]);
}

/// Processes that this one started.
fn children(of: u32) -> Vec<String> {
    let parent_of = |process: &str| {
        let stat = fs_err::read_to_string(Path::new("/proc").join(process).join("stat")).ok()?;
        // The name in parentheses may hold anything.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let all = fs_err::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| parent_of(name) == Some(of)).collect()
}

/// Kills the cold engine of a run once it is there for so long, and returns the run's verdict, or
/// nothing where that engine had done its part.
fn without_cold_engine(after: Duration) -> Option<Value> {
    let place = Place::new();
    let mut run = place.start(LANE);
    let engine = loop {
        if let [engine] = children(run.id()).as_slice() {
            break engine.clone();
        }
        assert!(run.try_wait().unwrap().is_none(), "it ended without a cold engine");
        std::thread::yield_now();
    };
    std::thread::sleep(after);
    if !children(run.id()).contains(&engine) {
        run.wait().unwrap();
        return None;
    }
    let killed = Command::new("kill").args(["-KILL", &engine]).status().unwrap();
    let ended = run.wait_with_output().unwrap();
    if !killed.success() {
        return None;
    }
    let verdict: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(fs_err::read(place.file("verdict.json")).unwrap(), ended.stdout);
    match ended.status.code() {
        Some(1) => Some(verdict),
        // It ended by itself between the last look and the kill.
        code => {
            let verdict_of = (code, &verdict["verdict"]);
            assert_eq!(verdict_of, (Some(0), &Value::from("pass")), "{verdict:#}");
            None
        }
    }
}

#[test]
fn a_cold_engine_that_is_killed_is_one_finding() {
    let mut killed = 0;
    for milliseconds in [0, 5, 20, 40, 60] {
        let Some(verdict) = without_cold_engine(Duration::from_millis(milliseconds)) else {
            continue;
        };
        killed += 1;
        let findings = findings(&verdict);
        let [(category, code, _)] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!((category.as_str(), code.as_str()), ("transition", "engine-died"));
        assert_eq!(verdict["verdict"], "fail");
        let actual = verdict["findings"][0]["actual"].as_str().unwrap();
        assert!(actual.contains("SIGKILL"), "{actual}");
    }
    assert!(killed > 0, "no engine was killed at work");
}
