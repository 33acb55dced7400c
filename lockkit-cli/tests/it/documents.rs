//! The shell commands in `docs/` whose block begins with `sh run`: they do what the text says.
//!
//! `# prints TEXT` at the end of a line is what its output contains.

use std::{env, fs, path::Path};

use crate::harness::{Done, Home, done};

/// A block of commands, and what each line prints.
struct Block {
    document: String,
    commands: String,
    /// In the order of the lines.
    prints: Vec<String>,
}

fn blocks() -> Vec<Block> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let documents = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.flat_map(|path| blocks_of(&path)).collect()
}

fn blocks_of(path: &Path) -> Vec<Block> {
    let text = fs::read_to_string(path).unwrap();
    let found = text.split("```sh run\n").skip(1).map(|rest| {
        let commands = rest.split("```").next().unwrap().to_owned();
        let prints = commands.lines().filter_map(|line| Some(line.split_once("# prints ")?.1.to_owned()));
        Block { document: path.display().to_string(), prints: prints.collect(), commands }
    });
    found.collect()
}

#[test]
fn commands_in_the_documents_print_what_the_text_says() {
    let blocks = blocks();
    assert!(blocks.len() >= 3, "only {} blocks were found", blocks.len());
    let program = Path::new(env!("CARGO_BIN_EXE_lockkit"));
    let path = format!("{}:{}", program.parent().unwrap().display(), env::var("PATH").unwrap());
    for Block { document, commands, prints } in blocks {
        let home = Home::new();
        let mut shell = home.command("sh");
        shell.args(["-euc", &commands]).env("PATH", &path);
        let Done { status, stdout, stderr } = done(shell);
        let context = format!("{document}\n{commands}\n{stdout}\n{stderr}");
        assert_eq!(status, 0, "{context}");
        let mut rest = stdout.as_str();
        for text in prints {
            rest = rest.split_once(text.as_str()).unwrap_or_else(|| panic!("no {text:?} in {context}")).1;
        }
    }
}
