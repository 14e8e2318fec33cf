//! y = a x + y on the machine: parse, allocate, launch, read back.
//!
//! `cargo run -p ptx-emulator --example saxpy`

use ptx_emulator::{LaunchConfig, Machine, MachineConfig, Module};

const SAXPY: &str = r#"
.version 8.0
.target sm_89
.address_size 64

.visible .entry saxpy(
    .param .u64 saxpy_x,
    .param .u64 saxpy_y,
    .param .f32 saxpy_a,
    .param .u32 saxpy_n
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd1, [saxpy_x];
    ld.param.u64 %rd2, [saxpy_y];
    ld.param.f32 %f1, [saxpy_a];
    ld.param.u32 %r1, [saxpy_n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra $done;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f2, [%rd6];
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd7], %f4;
$done:
    ret;
}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const N: u32 = 1000;
    let module = Module::parse(SAXPY)?;
    // All checks on; the seed chooses the schedule.
    let mut machine = Machine::new(MachineConfig::checked(7));

    let x: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let y = vec![1.0f32; N as usize];
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (dx, dy) = (machine.alloc(u64::from(N) * 4, "x")?, machine.alloc(u64::from(N) * 4, "y")?);
    machine.write(dx, &bytes(&x))?;
    machine.write(dy, &bytes(&y))?;

    // Parameters as the driver takes them: each at its natural alignment.
    let mut params = Vec::new();
    params.extend(dx.to_le_bytes());
    params.extend(dy.to_le_bytes());
    params.extend(2.0f32.to_le_bytes());
    params.extend(N.to_le_bytes());

    let report = machine.launch(&module, "saxpy", &LaunchConfig::new([N.div_ceil(256), 1, 1], [256, 1, 1]), &params)?;
    for finding in &report.findings {
        println!("{finding}");
    }
    let mut out = vec![0; N as usize * 4];
    machine.read(dy, &mut out)?;
    let last = f32::from_le_bytes(out[out.len() - 4..].try_into()?);
    println!("{} warp instructions, y[{}] = {last}", report.warp_instructions, N - 1);
    assert_eq!(last, 2.0 * (N - 1) as f32 + 1.0);
    Ok(())
}
