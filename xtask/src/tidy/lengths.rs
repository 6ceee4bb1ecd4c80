//! Files of at most 600 lines that say what they are, functions of at most 70, lines of at most 100
//! columns.

use super::lexer::{Code, item_end, line_of, words};
use super::{SourceFile, Violation};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 100;

/// Lines that are too long, in any code.
pub(crate) fn lines(file: &SourceFile) -> Vec<Violation> {
    let long = |line: &str| line.chars().count() > COLUMNS;
    let lines = file.text.lines().enumerate().filter(|(_, line)| long(line));
    lines
        .map(|(index, line)| {
            let text = format!("{} columns; at most {COLUMNS}", line.chars().count());
            Violation::new(&file.path, index + 1, text)
        })
        .collect()
}

/// A Rust file's opening, its length and that of its functions. Test functions may be longer.
pub(crate) fn rust(file: &SourceFile, code: &Code) -> Vec<Violation> {
    let mut found = Vec::new();
    if !file.text.starts_with("//!") {
        let text = "does not open with `//!`: say in a sentence what lives here";
        found.push(Violation::new(&file.path, 1, text));
    }
    let count = file.text.lines().count();
    if count > FILE_LINES {
        let text = format!("{count} lines; at most {FILE_LINES}: split it by concept");
        found.push(Violation::new(&file.path, 0, text));
    }
    if !file.is_test() {
        found.extend(functions(file, &code.bare_untested()));
    }
    found
}

fn functions(file: &SourceFile, bare: &str) -> Vec<Violation> {
    let long = words(bare, "fn").filter_map(|start| {
        let signature = bare[start + 2..].trim_start();
        // `fn(u8) -> u8` is a type.
        if signature.starts_with('(') {
            return None;
        }
        let end = item_end(bare.as_bytes(), start);
        let first = line_of(bare, start);
        let lines = line_of(bare, end.saturating_sub(1)) - first + 1;
        (lines > FUNCTION_LINES).then(|| {
            let name: String =
                signature.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let text = format!("`{name}` has {lines} lines; at most {FUNCTION_LINES}");
            Violation::new(&file.path, first, text)
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(path: &str, text: String) -> Vec<String> {
        let file = SourceFile::new(path, text);
        rust(&file, &Code::of(&file.text)).into_iter().map(|found| found.text).collect()
    }

    fn function(name: &str, body: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    // }\n".repeat(body))
    }

    #[test]
    fn a_long_line_is_found_and_the_longest_legal_one_is_not() {
        let text = format!("{}\n{}\n", "é".repeat(COLUMNS), "x".repeat(COLUMNS + 1));
        let found = lines(&SourceFile::new("a.rs", text));
        assert_eq!(found, [Violation::new("a.rs", 2, "101 columns; at most 100")]);
    }

    #[test]
    fn a_long_function_is_found_and_the_longest_legal_one_is_not() {
        let fits = FUNCTION_LINES - 2;
        let text = format!("//! A.\n{}{}", function("fits", fits), function("long", fits + 1));
        assert_eq!(checked("src/a.rs", text), ["`long` has 71 lines; at most 70"]);
    }

    #[test]
    fn a_test_function_may_be_long() {
        let text = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", function("long", 90));
        assert_eq!(checked("src/a.rs", text), [""; 0]);
        assert_eq!(checked("src/a/tests.rs", format!("//! A.\n{}", function("long", 90))), [""; 0]);
        assert_eq!(checked("src/a.rs", format!("//! A.\n{}", function("long", 90))).len(), 1);
    }

    #[test]
    fn a_declaration_and_a_type_are_no_functions() {
        let filler = "// x\n".repeat(90);
        let text = format!("//! A.\ntrait A {{ fn a(b: [u8; 2]);\n{filler}}}\ntype F = fn(u8);\n");
        assert_eq!(checked("src/a.rs", text), [""; 0]);
    }

    #[test]
    fn a_file_says_what_it_is_and_ends_in_time() {
        assert_eq!(checked("a.rs", "// A.\n".to_owned()).len(), 1);
        assert_eq!(checked("a.rs", format!("//! A.\n{}", "\n".repeat(FILE_LINES - 1))), [""; 0]);
        let long = checked("a.rs", format!("//! A.\n{}", "\n".repeat(FILE_LINES)));
        assert_eq!(long, ["601 lines; at most 600: split it by concept"]);
    }
}
