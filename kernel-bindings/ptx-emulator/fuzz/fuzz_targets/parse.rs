//! Any text: the parser answers with a module or an error, and taking out a synchronising statement never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_emulator::ir::Module;
use ptx_emulator::parse;

fuzz_target!(|text: &str| {
    let parsed = Module::parse(text);
    for point in parse::sync_points(text) {
        let mutated = parse::remove_statement(text, &point);
        // What parsed still parses without one of its synchronising statements.
        if parsed.is_ok() {
            if let Err(error) = Module::parse(&mutated) {
                panic!("without `{}` (line {}): {error}", point.text, point.line);
            }
        }
    }
});
