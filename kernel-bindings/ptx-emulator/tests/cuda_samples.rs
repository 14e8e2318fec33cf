//! Kernels as nvcc emits them, against results computed here in plain Rust.

use ptx_emulator::{AsyncMode, Checks, CounterMode, LaunchConfig, LaunchReport, Machine, MachineConfig, Module};

const SM89: &str = include_str!("cuda/samples_sm89.ptx");
const SM120A: &str = include_str!("cuda/samples_sm120a.ptx");

struct Run {
    machine: Machine,
    module: Module,
    params: Vec<u8>,
}

/// Every way to run: fast, and checked under several seeds and copy modes.
fn configs() -> Vec<MachineConfig> {
    let mut all = vec![MachineConfig::fast(), MachineConfig { threads: 1, ..MachineConfig::fast() }];
    for seed in 0..6 {
        all.push(MachineConfig::checked(seed));
    }
    all.push(MachineConfig { async_mode: AsyncMode::Eager, ..MachineConfig::checked(9) });
    all.push(MachineConfig { checks: Checks::Off, async_mode: AsyncMode::AtWait, ..MachineConfig::fast() });
    all.push(MachineConfig { checks: Checks::Off, async_mode: AsyncMode::Random, seed: 3, ..MachineConfig::fast() });
    all
}

impl Run {
    fn new(text: &str, config: MachineConfig) -> Self {
        Run { machine: Machine::new(config), module: Module::parse(text).unwrap(), params: Vec::new() }
    }

    fn buffer<const N: usize>(&mut self, name: &str, items: impl IntoIterator<Item = [u8; N]>) -> u64 {
        let bytes: Vec<u8> = items.into_iter().flatten().collect();
        let at = self.machine.alloc(bytes.len() as u64, name).unwrap();
        self.machine.write(at, &bytes).unwrap();
        self.arg(at.to_le_bytes());
        at
    }

    fn output(&mut self, name: &str, bytes: u64) -> u64 {
        let at = self.machine.alloc(bytes, name).unwrap();
        self.arg(at.to_le_bytes());
        at
    }

    fn arg<const N: usize>(&mut self, bytes: [u8; N]) {
        self.params.resize(self.params.len().next_multiple_of(N), 0);
        self.params.extend(bytes);
    }

    fn launch(&mut self, entry: &str, grid: [u32; 3], block: u32) -> LaunchReport {
        let report =
            self.machine.launch(&self.module, entry, &LaunchConfig::new(grid, [block, 1, 1]), &self.params).unwrap();
        assert!(report.findings.is_empty(), "{entry}: {}", report.findings[0]);
        report
    }

    fn read<const N: usize>(&self, at: u64, count: usize) -> Vec<[u8; N]> {
        let mut bytes = vec![0; count * N];
        self.machine.read(at, &mut bytes).unwrap();
        bytes.chunks_exact(N).map(|c| c.try_into().unwrap()).collect()
    }

    fn read_i32(&self, at: u64, count: usize) -> Vec<i32> {
        self.read::<4>(at, count).into_iter().map(i32::from_le_bytes).collect()
    }

    fn read_f32(&self, at: u64, count: usize) -> Vec<f32> {
        self.read::<4>(at, count).into_iter().map(f32::from_le_bytes).collect()
    }
}

#[test]
fn reduce_by_shuffles_and_atomics() {
    for config in configs() {
        for text in [SM89, SM120A] {
            let mut run = Run::new(text, config.clone());
            let n = 10_000i32;
            run.buffer("x", (0..n).map(|i| ((i % 7) as f32).to_le_bytes()));
            let out = run.buffer("out", [0f32.to_le_bytes()]);
            let count = run.buffer("count", [0u32.to_le_bytes()]);
            run.arg(n.to_le_bytes());
            run.launch("reduce", [5, 1, 1], 256);
            let want: i32 = (0..n).map(|i| i % 7).sum();
            assert_eq!(run.read_f32(out, 1), [want as f32]);
            assert_eq!(run.read_i32(count, 1), [5]);
        }
    }
}

#[test]
fn last_block_sums_the_partials() {
    for config in configs() {
        let mut run = Run::new(SM89, config);
        let n = 5000i32;
        run.buffer("x", (0..n).map(|i| (i * 3 - 1000).to_le_bytes()));
        run.output("partial", 4 * 9);
        let out = run.output("out", 4);
        run.buffer("ticket", [0u32.to_le_bytes()]);
        run.arg(n.to_le_bytes());
        run.launch("last_block", [9, 1, 1], 128);
        assert_eq!(run.read_i32(out, 1), [(0..n).map(|i| i * 3 - 1000).sum::<i32>()]);
    }
}

#[test]
fn matmul_with_a_pipeline_of_async_copies() {
    let (m, n, k) = (128usize, 64usize, 96usize);
    // Small integers: every sum is exact, whatever its order.
    let a: Vec<i32> = (0..m * k).map(|i| (i * 7 % 11) as i32 - 5).collect();
    let b: Vec<i32> = (0..n * k).map(|i| (i * 5 % 13) as i32 - 6).collect();
    let bf16 = |v: &i32| ((*v as f32).to_bits() >> 16) as u16;
    let want: Vec<f32> =
        (0..m * n).map(|i| (0..k).map(|x| a[i / n * k + x] * b[i % n * k + x]).sum::<i32>() as f32).collect();
    for config in configs() {
        let mut run = Run::new(SM89, MachineConfig { counters: CounterMode::Total, ..config });
        run.buffer("a", a.iter().map(|v| bf16(v).to_le_bytes()));
        run.buffer("b", b.iter().map(|v| bf16(v).to_le_bytes()));
        let c = run.output("c", (m * n * 4) as u64);
        for x in [m, n, k] {
            run.arg((x as i32).to_le_bytes());
        }
        let report = run.launch("matmul", [1, 2, 1], 128);
        assert_eq!(run.read_f32(c, m * n), want);
        let counters = report.counters.unwrap();
        // 2 blocks x 4 warps x 6 k-steps x 8 column tiles.
        assert_eq!(counters.mma.values().sum::<u64>(), 2 * 4 * 6 * 8);
        assert_eq!(counters.mma_flops, 2 * (m * n * k) as u64);
        // Both operands once per block that needs them: A in full, B for each of the two row blocks.
        assert_eq!(counters.total.async_load_bytes, 2 * (m * k + 2 * n * k) as u64);
        // Rows are padded to 80 bytes: eight rows of a matrix fall into different banks.
        assert_eq!(counters.total.bank_conflicts, 0, "{counters:?}");
        assert_eq!(counters.total.global_store_bytes, (m * n * 4) as u64);
    }
}

#[test]
fn bulk_copies_with_mbarriers() {
    for config in configs() {
        let mut run = Run::new(SM120A, config);
        let (blocks, tiles) = (3i32, 7i32);
        let x: Vec<i32> = (0..blocks * tiles * 512).map(|i| i * 31 % 1009).collect();
        run.buffer("x", x.iter().map(|v| v.to_le_bytes()));
        let out = run.output("out", blocks as u64 * 512);
        run.arg(tiles.to_le_bytes());
        run.launch("bulk_sum", [blocks as u32, 1, 1], 160);
        let want: Vec<i32> = (0..blocks * 128)
            .map(|i| {
                let (block, thread) = ((i / 128) as usize, (i % 128) as usize);
                let own = &x[block * tiles as usize * 512..(block + 1) * tiles as usize * 512];
                own.iter().skip(thread).step_by(128).sum()
            })
            .collect();
        assert_eq!(run.read_i32(out, blocks as usize * 128), want);
    }
}

#[test]
fn divergent_loops_and_early_returns() {
    let steps = |mut v: i64| {
        let mut c = 0;
        while v != 1 {
            v = if v % 2 == 0 { v / 2 } else { 3 * v + 1 };
            c += 1;
            if c > 500 {
                return -1;
            }
        }
        c
    };
    for config in configs() {
        let mut run = Run::new(SM89, config);
        let n = 300i32;
        run.buffer("x", (0..n).map(|i| (i * 17 + 1).to_le_bytes()));
        let out = run.output("steps", 4 * n as u64);
        run.arg(n.to_le_bytes());
        run.launch("collatz", [3, 1, 1], 128);
        let want: Vec<i32> = (0..n).map(|i| steps(i64::from(i * 17 + 1))).collect();
        assert_eq!(run.read_i32(out, n as usize), want);
    }
}

#[test]
fn histogram_by_atomics() {
    for config in configs() {
        let mut run = Run::new(SM89, config);
        let n = 3001u32;
        let x: Vec<u8> = (0..n).map(|i| (i * i % 251) as u8).collect();
        run.buffer("x", x.iter().map(|v| [*v]));
        let hist = run.buffer("hist", [[0u8; 4]; 256]);
        run.arg(n.to_le_bytes());
        run.launch("histogram", [4, 1, 1], 192);
        let mut want = vec![0; 256];
        x.iter().for_each(|v| want[*v as usize] += 1);
        assert_eq!(run.read_i32(hist, 256), want);
    }
}

#[test]
fn local_arrays_doubles_and_divisions() {
    for config in configs() {
        let mut run = Run::new(SM89, config);
        let (n, m) = (70i32, 13i32);
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.37 - 3.0).collect();
        run.buffer("x", x.iter().map(|v| v.to_le_bytes()));
        let out = run.output("y", 8 * n as u64);
        run.arg(n.to_le_bytes());
        run.arg(m.to_le_bytes());
        run.launch("mixed", [1, 1, 1], 96);
        let got: Vec<f64> = run.read::<8>(out, n as usize).into_iter().map(f64::from_le_bytes).collect();
        for i in 0..n {
            let mut t: [f32; 8] = std::array::from_fn(|k| x[i as usize] * k as f32);
            let index = (i * 7 + 3) % m;
            t[index as usize & 7] += 1.0;
            let mut s = 0.0;
            for k in 0..8 {
                s += f64::from(t[(k + i as usize) & 7]) / (k as f64 + 1.0);
            }
            let want = s + f64::from(i).sqrt() + f64::from(i / m) - (i64::from(i) * 1_000_003 % i64::from(m)) as f64;
            assert!((got[i as usize] - want).abs() <= 1e-12 * want.abs().max(1.0), "{i}: {} {want}", got[i as usize]);
        }
    }
}
