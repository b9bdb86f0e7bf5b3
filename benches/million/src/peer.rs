//! A process of this program that measures on demand: a line asks, a line of numbers answers.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Ends its process when it is dropped.
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(arguments: &[&str]) -> io::Result<Peer> {
        let mut process = Command::new(env::current_exe()?)
            .arg("child")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(io::Error::other("a process without pipes"));
        };
        Ok(Peer {
            process,
            input,
            output: BufReader::new(output),
        })
    }

    pub(crate) fn ask(&mut self, question: &str) -> io::Result<Vec<f64>> {
        writeln!(self.input, "{question}")?;
        self.numbers()
    }

    pub(crate) fn numbers(&mut self) -> io::Result<Vec<f64>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a process ended too soon"));
        }
        line.split_whitespace().map(number).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

pub(crate) fn number(text: &str) -> io::Result<f64> {
    text.parse()
        .map_err(|_| io::Error::other(format!("a process said {text:?} instead of a number")))
}

/// In the process itself: answers each line of standard input until that ends.
pub(crate) fn answer(mut answer: impl FnMut(&str) -> io::Result<Vec<f64>>) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        tell(&answer(&line?)?);
    }
    Ok(())
}

pub(crate) fn tell(numbers: &[f64]) {
    let numbers: Vec<_> = numbers.iter().map(f64::to_string).collect();
    println!("{}", numbers.join(" "));
}
