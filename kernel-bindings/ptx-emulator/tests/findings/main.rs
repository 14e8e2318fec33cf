//! Every finding class: a program that has the fault and one that has not, under several schedules.

mod asynchronous;
mod barriers;
mod launches;
mod memory;
mod values;

use ptx_emulator::{AsyncMode, Checks, Finding, FindingClass, LaunchConfig, Machine, MachineConfig, Module};

/// A module for sm_120a with one entry `k` of parameters `in`, `out` (pointers) and `n` (u32).
pub(crate) fn text(variables: &str, body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_120a\n.address_size 64\n{variables}\n\
         .visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)\n{{\n\
         .reg .pred %p<10>;\n.reg .b16 %h<10>;\n.reg .b32 %r<40>;\n.reg .f32 %f<40>;\n.reg .b64 %rd<20>;\n\
         ld.param.u64 %rd0, [in];\nld.param.u64 %rd1, [out];\nld.param.u32 %r0, [n];\n\
         mov.u32 %r1, %tid.x;\nmov.u32 %r2, %laneid;\nmov.u32 %r3, %warpid;\nmul.wide.u32 %rd2, %r1, 4;\n\
         add.s64 %rd3, %rd0, %rd2;\nadd.s64 %rd4, %rd1, %rd2;\n{body}\nret;\n}}\n"
    )
}

/// One run: findings, and the words of the output buffer.
pub(crate) struct Outcome {
    pub(crate) findings: Vec<Finding>,
    pub(crate) out: Vec<u32>,
}

impl Outcome {
    pub(crate) fn classes(&self) -> Vec<FindingClass> {
        let mut classes: Vec<_> = self.findings.iter().map(|f| f.class).collect();
        classes.sort();
        classes.dedup();
        classes
    }
}

/// A launch to be made: buffers of 4,096 bytes, the input holding 0, 1, 2, ...
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) text: String,
    pub(crate) dims: LaunchConfig,
    pub(crate) n: u32,
    pub(crate) config: MachineConfig,
}

pub(crate) fn case(threads: u32, body: &str) -> Case {
    case_with(threads, "", body)
}

pub(crate) fn case_with(threads: u32, variables: &str, body: &str) -> Case {
    let config = MachineConfig { max_instructions: 1_000_000, ..MachineConfig::checked(0) };
    Case { text: text(variables, body), dims: LaunchConfig::new([1, 1, 1], [threads, 1, 1]), n: 0, config }
}

impl Case {
    pub(crate) fn grid(mut self, blocks: u32) -> Self {
        self.dims.grid = [blocks, 1, 1];
        self
    }

    pub(crate) fn run(&self, seed: u64) -> Outcome {
        let mut config = MachineConfig { seed, ..self.config.clone() };
        if config.checks == Checks::Full {
            config.async_mode = [AsyncMode::AtWait, AsyncMode::Random, AsyncMode::Eager][seed as usize % 3];
        }
        let module = Module::parse(&self.text).unwrap_or_else(|e| panic!("{e}\n{}", self.text));
        let mut machine = Machine::new(config);
        let input = machine.alloc(4096, "in").unwrap();
        let words: Vec<u8> = (0..1024u32).flat_map(u32::to_le_bytes).collect();
        machine.write(input, &words).unwrap();
        let out = machine.alloc(4096, "out").unwrap();
        machine.fill(out, 0, 4096).unwrap();
        let mut params = input.to_le_bytes().to_vec();
        params.extend(out.to_le_bytes());
        params.extend(self.n.to_le_bytes());
        let report = machine.launch(&module, "k", &self.dims, &params).unwrap_or_else(|e| panic!("{e}\n{}", self.text));
        let mut bytes = vec![0; 4096];
        machine.read(out, &mut bytes).unwrap();
        let out = bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        Outcome { findings: report.findings, out }
    }

    /// Every schedule reports exactly this class, at the line that holds `at`.
    pub(crate) fn finds(&self, class: FindingClass, at: &str) {
        for seed in 0..9 {
            let outcome = self.run(seed);
            let texts: Vec<String> = outcome.findings.iter().map(Finding::to_string).collect();
            assert_eq!(outcome.classes(), [class], "seed {seed}: {texts:#?}\n{}", self.text);
            assert!(
                outcome.findings.iter().any(|f| f.place.instruction.contains(at)),
                "seed {seed}: nothing at `{at}`: {texts:#?}"
            );
        }
    }

    /// No schedule reports anything; the output begins with these words.
    pub(crate) fn clean(&self, out: &[u32]) {
        for seed in 0..9 {
            let outcome = self.run(seed);
            assert!(outcome.findings.is_empty(), "seed {seed}: {}\n{}", outcome.findings[0], self.text);
            assert_eq!(outcome.out[..out.len()], *out, "seed {seed}\n{}", self.text);
        }
        let fast =
            Case { config: MachineConfig { max_instructions: 1_000_000, ..MachineConfig::fast() }, ..self.clone() };
        let outcome = fast.run(0);
        assert!(outcome.findings.is_empty(), "fast: {}\n{}", outcome.findings[0], self.text);
        assert_eq!(outcome.out[..out.len()], *out, "fast\n{}", self.text);
    }
}
