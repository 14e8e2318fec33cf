//! What stands between the marker of a tag and its `>`.

/// A tag ends here at the latest, bytes behind its marker: one that never ends must not be searched again and again.
pub(super) const MAX_TAG_BYTES: usize = 4096;

/// The name of a tag.
pub(super) fn name(tag: &str) -> &str {
    tag.trim_start().split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Whether a tag, of which there may be more, opens a call or a parameter.
pub(super) fn may_be_ours(tag: &str) -> bool {
    let tag = tag.trim_start();
    ["invoke", "parameter"].iter().any(|ours| match tag.strip_prefix(ours) {
        Some(rest) => rest.is_empty() || rest.starts_with(char::is_whitespace),
        None => ours.starts_with(tag),
    })
}

/// Bytes of a tag with its `>`, once they are there. Attributes may contain `>`, but not `">`.
pub(super) fn tag_end(tag: &str, closes: bool) -> Option<usize> {
    let within = &tag[..tag.floor_char_boundary(MAX_TAG_BYTES)];
    let ends = |&(at, _): &(usize, &str)| {
        let before = within[..at].trim_end_matches(['/', ' ']);
        closes || !may_be_ours(before) || !before.contains('"') || before.ends_with('"') && !before.ends_with("=\"")
    };
    let end = within.match_indices('>').find(ends).map(|(at, _)| at + 1);
    end.or((tag.len() > MAX_TAG_BYTES).then_some(within.len()))
}

/// The value of an attribute. A key may contain quotes: it ends where the attribute behind it begins.
pub(super) fn attribute<'a>(tag: &'a str, attribute: &str) -> Option<&'a str> {
    const STRING: &str = " string=\"";
    const NAME: &str = "name=\"";
    let first = |text: &'a str| Some(&text[..text.find('"')?]);
    let split = tag.rsplit_once(STRING);
    if attribute == "string" {
        return split.and_then(|(_, value)| first(value));
    }
    match split.and_then(|(before, _)| before.split_once(NAME)) {
        Some((_, key)) => key.strip_suffix('"'),
        None => tag.split_once(NAME).and_then(|(_, value)| first(value)),
    }
}
