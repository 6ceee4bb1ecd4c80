//! Rust text without its comments and strings, line for line and column for column.
//!
//! Enough of Rust's lexical grammar to count braces and find words: nested comments, strings, raw
//! strings, byte strings, characters against lifetimes. Macros are text like any other.

/// A file's text with parts of it blanked. Blanks are spaces; line ends stay.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Without comments and without what strings and characters hold.
    pub(crate) bare: String,
    /// Without comments.
    pub(crate) uncommented: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Text,
}

impl Code {
    /// Reads a file.
    pub(crate) fn of(text: &str) -> Self {
        let parts = parts(text.as_bytes());
        Self {
            bare: keep(text, &parts, |part| part == Part::Code),
            uncommented: keep(text, &parts, |part| part != Part::Comment),
        }
    }

    /// As [`Code::bare`], without items under `#[cfg(test)]`.
    pub(crate) fn bare_untested(&self) -> String {
        const TEST: &str = "#[cfg(test)]";
        let mut bytes = self.bare.clone().into_bytes();
        for (start, _) in self.bare.match_indices(TEST) {
            let end = item_end(self.bare.as_bytes(), start + TEST.len());
            for byte in bytes.iter_mut().take(end).skip(start).filter(|byte| **byte != b'\n') {
                *byte = b' ';
            }
        }
        // Blanks are ASCII, and what is blanked ends at ASCII.
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The byte after an item: after its `;`, or after the brace that closes its first `{`.
pub(crate) fn item_end(bare: &[u8], start: usize) -> usize {
    let mut nested = 0_usize;
    for (index, byte) in bare.iter().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => nested += 1,
            b')' | b']' => nested = nested.saturating_sub(1),
            b';' if nested == 0 => return index + 1,
            b'{' if nested == 0 => return closing_brace(bare, index),
            _ => {}
        }
    }
    bare.len()
}

/// The byte after the brace that closes the one at `open`.
fn closing_brace(bare: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, byte) in bare.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return index + 1;
        }
    }
    bare.len()
}

fn keep(text: &str, parts: &[Part], is_kept: impl Fn(Part) -> bool) -> String {
    let mut kept = String::with_capacity(text.len());
    for (index, character) in text.char_indices() {
        let is_code = parts.get(index).is_none_or(|&part| is_kept(part));
        if is_code || character == '\n' {
            kept.push(character);
        } else {
            kept.extend(std::iter::repeat_n(' ', character.len_utf8()));
        }
    }
    kept
}

fn parts(bytes: &[u8]) -> Vec<Part> {
    let mut parts = vec![Part::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (part, length) = next(bytes, at);
        let end = (at + length).min(bytes.len());
        parts[at..end].fill(part);
        at = end;
    }
    parts
}

/// The part that begins here and its length, at least 1.
fn next(bytes: &[u8], at: usize) -> (Part, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let end = rest.iter().position(|&byte| byte == b'\n');
        return (Part::Comment, end.unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (Part::Comment, block_comment(rest));
    }
    let is_inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'"', ..] => (Part::Text, quoted(rest, b'"')),
        [b'\'', ..] => character(rest).map_or((Part::Code, 1), |length| (Part::Text, length)),
        [b'r', ..] | [b'b', b'r', ..] if !is_inside_word => {
            raw_string(rest).map_or((Part::Code, 1), |length| (Part::Text, length))
        }
        _ => (Part::Code, 1),
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a quoted text with escapes, both quotes counted.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character; nothing for a lifetime or a loop label.
fn character(rest: &[u8]) -> Option<usize> {
    match rest.get(1)? {
        b'\\' => Some(quoted(rest, b'\'')),
        &first => {
            let length = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            (rest.get(1 + length) == Some(&b'\'')).then_some(length + 2)
        }
    }
}

/// The length of `r"…"`, `r#"…"#`, `br"…"`; nothing for a raw identifier or another word.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = if rest.starts_with(b"br") { 2 } else { 1 };
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &rest[open + 1..];
    let length = body.windows(close.len()).position(|window| window == close);
    Some(length.map_or(rest.len(), |length| open + 1 + length + close.len()))
}

/// Whether a byte can be part of a Rust word.
pub(crate) const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Where `word` stands alone in a text.
pub(crate) fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(index, _)| index).filter(move |&index| {
        let is_before = index > 0 && is_word(bytes[index - 1]);
        let is_after = bytes.get(index + word.len()).is_some_and(|&byte| is_word(byte));
        !is_before && !is_after
    })
}

/// The line of a byte, from 1.
pub(crate) fn line_of(text: &str, index: usize) -> usize {
    text.bytes().take(index).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked_in_place() {
        let text = "let a = \"{ // é\"; // } \"x\nlet b = '{'; /* { /* \" */ } */ let c: &'a str;";
        let code = Code::of(text);
        assert_eq!(code.bare.len(), text.len());
        assert!(!code.bare.contains(['{', '}', '"']), "{}", code.bare);
        assert!(code.bare.ends_with("let c: &'a str;"));
        assert!(code.uncommented.contains("\"{ // é\""));
        assert!(!code.uncommented.contains('x'));
    }

    #[test]
    fn raw_strings_end_where_they_end() {
        let code = Code::of("f(r#\"a \" } \"#, br\"\\\", r#type, for_r\"{\");");
        assert_eq!(code.bare.matches('}').count(), 0);
        assert!(code.bare.contains("r#type"));
        assert!(code.bare.trim_end().ends_with(");"));
    }

    #[test]
    fn an_item_under_test_is_blanked_and_what_follows_stays() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n";
        let left = Code::of(text).bare_untested();
        assert!(left.contains("fn a") && left.contains("fn c") && !left.contains("fn b"));
        assert_eq!(left.lines().count(), text.lines().count());
    }

    #[test]
    fn a_word_stands_alone() {
        assert_eq!(words("fn_a fn b fnc (fn)", "fn").collect::<Vec<_>>(), [5, 15]);
    }
}
