//! What is refused before anything runs.

use crate::text;
use ptx_emulator::{DeviceModel, FindingClass, LaunchConfig, LaunchError, Machine, MachineConfig, Module};

fn launch(text: &str, dims: LaunchConfig, params: &[u8]) -> LaunchError {
    let module = Module::parse(text).unwrap();
    Machine::new(MachineConfig::checked(0)).launch(&module, "k", &dims, params).unwrap_err()
}

#[test]
fn refused_launches() {
    let plain = text("", "");
    let one = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    let refused = |text: &str, dims, params: &[u8], want: &str| {
        let error = launch(text, dims, params);
        assert_eq!(error.class(), FindingClass::BadLaunch, "{error}");
        assert_eq!(error.to_string(), want);
    };
    refused(&plain, one, &[0; 16], "entry `k`: parameters take 20 bytes, got 16");
    refused(
        &plain,
        LaunchConfig::new([1, 1, 1], [1025, 1, 1]),
        &[0; 20],
        "entry `k`: a block of [1025, 1, 1] is not allowed, 1 to 1024 threads, at most 64 along z",
    );
    refused(
        &plain,
        LaunchConfig::new([0, 1, 1], [32, 1, 1]),
        &[0; 20],
        "entry `k`: a grid of [0, 1, 1] is not allowed, 1 to 2^31-1, 65535, 65535 blocks",
    );
    refused(
        &plain,
        one.with_shared(101_377),
        &[0; 20],
        "entry `k`: 101377 bytes of shared memory (0 static), the device has 101376 per block",
    );
    let bound = plain.replace("\n{\n", "\n.maxntid 64, 1, 1\n{\n");
    refused(
        &bound,
        LaunchConfig::new([1, 1, 1], [128, 1, 1]),
        &[0; 20],
        "entry `k`: a block of [128, 1, 1] is not allowed, the entry allows [64, 1, 1] (.maxntid)",
    );
    let exact = plain.replace("\n{\n", "\n.reqntid 64, 1, 1\n{\n");
    refused(
        &exact,
        one,
        &[0; 20],
        "entry `k`: a block of [32, 1, 1] is not allowed, the entry requires [64, 1, 1] (.reqntid)",
    );
    refused(&plain.replace("sm_120a", "sm_90a"), one, &[0; 20], "text for sm_90a does not run on sm_120a, 188 SMs");
    let cluster = LaunchConfig { cluster: [2, 1, 1], ..one };
    refused(
        &plain,
        cluster,
        &[0; 20],
        "entry `k`: a cluster of [2, 1, 1] is not allowed, it must divide the grid [1, 1, 1]",
    );
    let wide = LaunchConfig { grid: [16, 1, 1], cluster: [16, 1, 1], ..one };
    refused(&plain, wide, &[0; 20], "entry `k`: a cluster of [16, 1, 1] is not allowed, 1 to 8 blocks");
    let pair = LaunchConfig { grid: [2, 1, 1], cluster: [2, 1, 1], ..one };
    refused(
        &plain.replace("sm_120a", "sm_89"),
        pair,
        &[0; 20],
        "entry `k`: a cluster of [2, 1, 1] is not allowed, clusters need a text for sm_90 or later",
    );
    let many = LaunchConfig { grid: [100_000, 1, 1], all_resident: true, ..one };
    refused(&plain, many, &[0; 20], "entry `k`: 100000 blocks must all be resident, the device holds 9024");
    let module = Module::parse(&plain).unwrap();
    let error = Machine::new(MachineConfig::checked(0)).launch(&module, "other", &one, &[]).unwrap_err();
    assert_eq!(error.to_string(), "module has no entry `other`; it has k");
}

#[test]
fn targets() {
    let runs = |name: &str| {
        let text = text("", "").replace("sm_120a", name).replace(".version 8.7", ".version 9.0");
        let module = Module::parse(&text).unwrap();
        DeviceModel::default().runs(module.target)
    };
    for name in ["sm_75", "sm_89", "sm_90", "sm_100", "sm_120", "sm_120a"] {
        assert!(runs(name), "{name}");
    }
    for name in ["sm_90a", "sm_100a", "sm_121"] {
        assert!(!runs(name), "{name}");
    }
}

#[test]
fn parameters_in_their_space() {
    // A by-value struct, read through the generic address of its parameter.
    let text = ".version 8.7\n.target sm_120a\n.address_size 64\n\
                .visible .entry k(.param .align 8 .b8 s[24])\n{\n.reg .b64 %rd<6>;\n.reg .b32 %r<6>;\n\
                mov.b64 %rd1, s;\ncvta.param.u64 %rd2, %rd1;\nld.u32 %r1, [%rd2+8];\nld.param.u32 %r2, [s+12];\n\
                ld.param.u64 %rd3, [s];\nst.global.u32 [%rd3], %r1;\nst.global.u32 [%rd3+4], %r2;\n\
                ld.param.v2.u32 {%r3, %r4}, [s+16];\nadd.u32 %r3, %r3, %r4;\nst.global.u32 [%rd3+8], %r3;\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let mut machine = Machine::new(MachineConfig::checked(0));
    let out = machine.alloc(12, "out").unwrap();
    let mut params = out.to_le_bytes().to_vec();
    for x in [5u32, 6, 7, 8] {
        params.extend(x.to_le_bytes());
    }
    let report = machine.launch(&module, "k", &LaunchConfig::new([1; 3], [1; 3]), &params).unwrap();
    assert!(report.findings.is_empty(), "{}", report.findings[0]);
    let mut bytes = [0; 12];
    machine.read(out, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 0, 0, 0, 6, 0, 0, 0, 15, 0, 0, 0]);
}

#[test]
fn module_variables() {
    let text = ".version 8.7\n.target sm_120a\n.address_size 64\n.const .align 4 .u32 c[2] = {11, 22};\n\
                .global .align 4 .u32 g[2] = {1, 2};\n.global .align 4 .u32 z;\n\
                .visible .entry k()\n{\n.reg .b32 %r<6>;\n.reg .b64 %rd<4>;\nld.const.u32 %r1, [c+4];\nld.global.u32 %r2, [g];\n\
                add.u32 %r3, %r1, %r2;\nst.global.u32 [g], %r3;\nmov.u64 %rd1, c;\ncvta.const.u64 %rd2, %rd1;\nld.u32 %r4, [%rd2];\n\
                ld.global.u32 %r5, [z];\nadd.u32 %r4, %r4, %r5;\nst.global.u32 [g+4], %r4;\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let mut machine = Machine::new(MachineConfig::checked(0));
    let dims = LaunchConfig::new([1; 3], [1; 3]);
    for _ in 0..2 {
        let report = machine.launch(&module, "k", &dims, &[]).unwrap();
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
    }
    let (at, size) = machine.global(&module, "g").unwrap().unwrap();
    assert_eq!(size, 8);
    let mut bytes = [0; 8];
    machine.read(at, &mut bytes).unwrap();
    // Memory is kept between launches: 1 + 22, then 23 + 22.
    assert_eq!(bytes, [45, 0, 0, 0, 11, 0, 0, 0]);
}
