//! The compiler's PTX text: made independent of the folder it was made in, and its head read.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::manifest::Entry;

/// What stands before the instructions.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) version: String,
    pub(crate) target: String,
    pub(crate) entries: Vec<Entry>,
}

/// Reads version, target and entries. An entry must state its block size (`__launch_bounds__`) and its dynamic shared
/// bytes (`declare_shared`).
pub(crate) fn head(text: &str) -> Result<Head, String> {
    let directive = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(|rest| rest.trim().to_owned())
            .ok_or(format!("no {name}"))
    };
    let mut entries = Vec::new();
    for part in text.split(".visible .entry ").skip(1) {
        let name = part.split(['(', '\n', ' ']).next().unwrap_or_default().to_owned();
        let threads: u32 = number_after(part, ".maxntid ")
            .zip(part.split(".maxntid ").nth(1).and_then(|rest| rest.lines().next()))
            .map(|(_, axes)| axes.split(',').filter_map(|n| n.trim().parse::<u32>().ok()).product())
            .ok_or(format!("entry {name}: expected __launch_bounds__, got none"))?;
        let declared = part.matches("// dynamic_shared ").count();
        if declared != 1 {
            return Err(format!("entry {name}: expected one declare_shared<>(), got {declared}"));
        }
        let parameters = part.split('{').next().unwrap_or_default().matches(".param ").count();
        if parameters != 1 {
            return Err(format!("entry {name}: expected one parameter struct, got {parameters} parameters"));
        }
        entries.push(Entry {
            threads,
            min_blocks_per_sm: number_after(part, ".minnctapersm "),
            parameter_bytes: number_after(part.split(".param ").nth(1).unwrap_or_default(), "_param_0[")
                .ok_or(format!("entry {name}: expected a struct by value"))?,
            dynamic_shared_bytes: number_after(part, "// dynamic_shared ").unwrap_or(0),
            resources: BTreeMap::new(),
            name,
        });
    }
    if text.contains(".local ") {
        return Err(
            "local memory (.local) in the text: an array is indexed at run time or its address escapes".to_owned()
        );
    }
    Ok(Head { version: directive(".version")?, target: directive(".target")?, entries })
}

fn number_after(text: &str, mark: &str) -> Option<u32> {
    let rest = text.split(mark).nth(1)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Replaces what depends on the folder: paths of `.file`, and the number that the compiler derives from the source's full
/// path for functions with internal linkage (those of the toolkit's headers), in names and in the string section.
pub(crate) fn normalise(text: &str, crate_dir: &Path, toolkit: &Path) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.trim_start().strip_prefix(".file") {
            let mut parts = rest.splitn(3, '"');
            let (number, path) = (parts.next().unwrap_or_default().trim(), parts.next().unwrap_or_default());
            out += &format!("\t.file\t{number} \"{}\"\n", file_name(path, crate_dir, toolkit)?);
        } else if line.starts_with(".b8 ") {
            let mut bytes = Vec::new();
            let mut current = Some(line);
            while let Some(line) = current {
                for number in line[4..].split(',') {
                    bytes.push(number.trim().parse::<u8>().map_err(|_| format!("unexpected line {line:?}"))?);
                }
                current = lines.next_if(|line| line.starts_with(".b8 "));
            }
            // One char per byte, so that the text rule below applies.
            let string: String = bytes.iter().map(|&b| char::from(b)).collect();
            let bytes: Vec<String> = internal_names(&string)?.chars().map(|c| u32::from(c).to_string()).collect();
            for chunk in bytes.chunks(40) {
                out += &format!(".b8 {}\n", chunk.join(","));
            }
        } else {
            out += &internal_names(line)?;
            out.push('\n');
        }
    }
    Ok(out)
}

fn file_name(path: &str, crate_dir: &Path, toolkit: &Path) -> Result<String, String> {
    let mut full = std::path::PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            std::path::Component::ParentDir => {
                full.pop();
            }
            other => full.push(other),
        }
    }
    if full.is_relative() {
        full = crate_dir.join(full);
    }
    if let Ok(inside) = full.strip_prefix(crate_dir) {
        return Ok(format!("kernels/{}", inside.display()));
    }
    if let Ok(inside) = full.strip_prefix(toolkit) {
        return Ok(format!("cuda/{}", inside.display()));
    }
    Err(format!("line information names {path}, which is neither a file of this crate nor of the toolkit"))
}

fn internal_names(text: &str) -> Result<String, String> {
    const MARK: &str = "_INTERNAL_";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, after) = rest.split_at(at + MARK.len());
        out += before;
        // Eight digits always: the length of the mangled name stays right.
        let digits = after.chars().take_while(char::is_ascii_hexdigit).count();
        if digits != 8 {
            return Err(format!("internal name with {digits} digits instead of 8: {text:?}"));
        }
        out += "00000000";
        rest = &after[8..];
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_depend_on_the_folder() {
        let text = |root: &str, hash: &str| {
            let name = format!("_ZN7_INTERNAL_{hash}_4_a_cuE\0");
            let bytes: Vec<String> = name.bytes().map(|b| b.to_string()).collect();
            let (one, two) = bytes.split_at(15);
            format!(
                "call _ZN7_INTERNAL_{hash}_4_a_cuE;\n\t.file\t1 \"{root}/kernels/cuda/a.cu\"\n\
                 \t.file\t2 \"{root}/nvcc/bin/..//include/b.h\", 17, 23\n.b8 {}\n.b8 {}\n}}\n",
                one.join(","),
                two.join(",")
            )
        };
        let normal = |root: &str, hash: &str| {
            normalise(&text(root, hash), &Path::new(root).join("kernels"), &Path::new(root).join("nvcc")).unwrap()
        };
        let first = normal("/home/a", "0123abcd");
        assert_eq!(first, normal("/srv/else/where", "fedc9876"));
        assert!(first.contains("\t.file\t1 \"kernels/cuda/a.cu\"\n"), "{first}");
        assert!(first.contains("\t.file\t2 \"cuda/include/b.h\"\n"), "{first}");
        assert!(first.contains("call _ZN7_INTERNAL_00000000_4_a_cuE;\n"), "{first}");
    }

    #[test]
    fn entry_without_shared_declaration_is_refused() {
        let text = ".version 9.0\n.target sm_89\n.visible .entry k_sm89(\n\t.param .align 8 .b8 k_sm89_param_0[16]\n)\n\
                    .maxntid 256, 2, 1\n{\n\t// dynamic_shared 64\n}\n";
        let head = head(text).unwrap();
        let entry = &head.entries[0];
        assert_eq!((entry.threads, entry.dynamic_shared_bytes, entry.parameter_bytes), (512, 64, 16));
        assert_eq!((head.version.as_str(), head.target.as_str()), ("9.0", "sm_89"));
        let error = super::head(&text.replace("// dynamic_shared 64", "")).unwrap_err();
        assert_eq!(error, "entry k_sm89: expected one declare_shared<>(), got 0");
        let error = super::head(&text.replace(".maxntid", ".reqntid")).unwrap_err();
        assert_eq!(error, "entry k_sm89: expected __launch_bounds__, got none");
    }
}
