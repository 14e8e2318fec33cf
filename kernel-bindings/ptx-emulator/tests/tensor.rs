//! Matrix instructions against the formulas of the PTX ISA: fragments are filled and read here with the index formulas
//! of section 9.7.14.5, transcribed shape by shape, and the result must be the plain product of the matrices.

#![allow(clippy::needless_range_loop)]

use proptest::prelude::*;
use ptx_emulator::ir::{BlockScale, MatrixElement, MatrixShape, MmaDesc, MmaKind, Rounding, Shape, Type};
use ptx_emulator::num::{formats, soft};
use ptx_emulator::tensor::matrix::{MatrixMap, Rows, movmatrix};
use ptx_emulator::tensor::{Lanes, MmaPlan, ScaleInput, mma, scale};

/// Row and column of element `i` of the A fragment of a lane, as the ISA states them.
fn isa_a(m: u32, k: u32, width: u32, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    match (m, k, width) {
        // tf32
        (16, 4, 32) => (if i == 0 { group } else { group + 8 }, member),
        (16, 8, 32) => (if i == 0 || i == 2 { group } else { group + 8 }, if i < 2 { member } else { member + 4 }),
        // f16, bf16
        (16, 8, 16) => (if i < 2 { group } else { group + 8 }, member * 2 + (i & 1)),
        (16, 16, 16) => (
            if i < 2 || (4..6).contains(&i) { group } else { group + 8 },
            if i < 4 { member * 2 + (i & 1) } else { member * 2 + (i & 1) + 8 },
        ),
        // 8 bits
        (8, 16, 8) => (group, member * 4 + i),
        (16, 16, 8) => (if i < 4 { group } else { group + 8 }, member * 4 + (i & 3)),
        (16, 32, 8) => (
            if i < 4 || (8..12).contains(&i) { group } else { group + 8 },
            if i < 8 { member * 4 + (i & 3) } else { member * 4 + (i & 3) + 16 },
        ),
        // 4 bits
        (8, 32, 4) => (group, member * 8 + i),
        (16, 32, 4) => (if i < 8 { group } else { group + 8 }, member * 8 + (i & 7)),
        (16, 64, 4) => (
            if i < 8 || (16..24).contains(&i) { group } else { group + 8 },
            if i < 16 { member * 8 + (i & 7) } else { member * 8 + (i & 7) + 32 },
        ),
        other => panic!("no A fragment of {other:?}"),
    }
}

/// Row (along k) and column of element `i` of the B fragment of a lane.
fn isa_b(m: u32, k: u32, width: u32, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    let row = match (m, k, width) {
        (16, 4, 32) => member,
        (16, 8, 32) => {
            if i == 0 {
                member
            } else {
                member + 4
            }
        }
        (16, 8, 16) => member * 2 + i,
        (16, 16, 16) => {
            if i < 2 {
                member * 2 + (i & 1)
            } else {
                member * 2 + (i & 1) + 8
            }
        }
        (8 | 16, 16, 8) => member * 4 + i,
        (16, 32, 8) => {
            if i < 4 {
                member * 4 + (i & 3)
            } else {
                member * 4 + (i & 3) + 16
            }
        }
        (8 | 16, 32, 4) => member * 8 + i,
        (16, 64, 4) => {
            if i < 8 {
                member * 8 + (i & 7)
            } else {
                member * 8 + (i & 7) + 32
            }
        }
        other => panic!("no B fragment of {other:?}"),
    };
    (row, group)
}

/// Row and column of accumulator `i`.
fn isa_c(m: u32, lane: usize, i: usize) -> (usize, usize) {
    let (group, member) = (lane >> 2, lane % 4);
    (if m == 8 || i < 2 { group } else { group + 8 }, member * 2 + (i & 1))
}

fn width(desc: &MmaDesc) -> u32 {
    match desc.a {
        Type::TF32 => 32,
        Type::F16 | Type::BF16 => 16,
        Type::S4 | Type::U4 => 4,
        _ if matches!(desc.kind, MmaKind::Mxf4 | MmaKind::Mxf4nvf4) => 4,
        _ => 8,
    }
}

/// Pattern of a small integer (or half integer for e2m1) in the register container of a type.
fn encode(value: f64, ty: Type, container: u32) -> u32 {
    let x = value as f32;
    match ty {
        // Garbage in the ignored low bits.
        Type::TF32 => x.to_bits() | 0x1555,
        Type::F32 => x.to_bits(),
        Type::F16 => formats::f32_to_f16(x) as u32,
        Type::BF16 => formats::f32_to_bf16(x) as u32,
        Type::S8 | Type::U8 => value as i32 as u32 & 0xff,
        Type::S4 | Type::U4 => value as i32 as u32 & 0xf,
        Type::S32 => value as i64 as u32,
        _ => {
            let bits =
                (0..256u32).find(|b| formats::decode(*b as u16, ty) as f64 == value).expect("a value of the type");
            // e2m1 in the middle of its byte, everything unused set.
            match ty {
                Type::E2M1 if container == 8 => bits << 2 | 0xc3,
                Type::E2M3 | Type::E3M2 => bits | 0xc0,
                _ => bits,
            }
        }
    }
}

fn decode_d(bits: u32, ty: Type) -> f64 {
    match ty {
        Type::S32 => bits as i32 as f64,
        Type::F16 => formats::f16_to_f32(bits as u16) as f64,
        _ => f32::from_bits(bits) as f64,
    }
}

fn desc(m: u32, k: u32, kind: MmaKind, a: Type, b: Type, acc: Type, scale: Option<(u32, Type)>) -> MmaDesc {
    MmaDesc {
        shape: Shape { m, n: 8, k },
        kind,
        a,
        b,
        c: acc,
        d: acc,
        block_scale: scale.map(|(scale_vec, ty)| BlockScale { scale_vec, ty }),
        satfinite: false,
    }
}

/// Every `mma` that the machine has.
fn all() -> Vec<MmaDesc> {
    use Type::*;
    let mut out = vec![
        desc(16, 4, MmaKind::Plain, TF32, TF32, F32, None),
        desc(16, 8, MmaKind::Plain, TF32, TF32, F32, None),
        desc(16, 8, MmaKind::Plain, BF16, BF16, F32, None),
        desc(16, 16, MmaKind::Plain, BF16, BF16, F32, None),
    ];
    for acc in [F16, F32] {
        out.push(desc(16, 8, MmaKind::Plain, F16, F16, acc, None));
        out.push(desc(16, 16, MmaKind::Plain, F16, F16, acc, None));
    }
    for a in [S8, U8] {
        for b in [S8, U8] {
            for (m, k) in [(8, 16), (16, 16), (16, 32)] {
                out.push(desc(m, k, MmaKind::Plain, a, b, S32, None));
            }
        }
    }
    for a in [S4, U4] {
        for b in [S4, U4] {
            for (m, k) in [(8, 32), (16, 32), (16, 64)] {
                out.push(desc(m, k, MmaKind::Plain, a, b, S32, None));
            }
        }
    }
    for acc in [F16, F32] {
        for a in [E4M3, E5M2] {
            for b in [E4M3, E5M2] {
                out.push(desc(16, 16, MmaKind::Plain, a, b, acc, None));
                out.push(desc(16, 32, MmaKind::Plain, a, b, acc, None));
            }
        }
        for a in [E4M3, E5M2, E3M2, E2M3, E2M1] {
            for b in [E4M3, E5M2, E3M2, E2M3, E2M1] {
                out.push(desc(16, 32, MmaKind::F8f6f4, a, b, acc, None));
                if acc == F32 {
                    out.push(desc(16, 32, MmaKind::Mxf8f6f4, a, b, acc, Some((1, UE8M0))));
                }
            }
        }
    }
    out.push(desc(16, 64, MmaKind::Mxf4, E2M1, E2M1, F32, Some((2, UE8M0))));
    out.push(desc(16, 64, MmaKind::Mxf4nvf4, E2M1, E2M1, F32, Some((2, UE8M0))));
    out.push(desc(16, 64, MmaKind::Mxf4nvf4, E2M1, E2M1, F32, Some((4, UE8M0))));
    out.push(desc(16, 64, MmaKind::Mxf4nvf4, E2M1, E2M1, F32, Some((4, E4M3))));
    out
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32
    }
    /// A value that the type holds exactly and whose sums stay exact.
    fn element(&mut self, ty: Type) -> f64 {
        let span = |r: u32, low: i32, high: i32| (low + (r % (high - low + 1) as u32) as i32) as f64;
        let r = self.next();
        match ty {
            Type::S8 => span(r, -128, 127),
            Type::U8 => span(r, 0, 255),
            Type::S4 => span(r, -8, 7),
            Type::U4 => span(r, 0, 15),
            Type::E2M1 => {
                [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][r as usize % 8] * if r & 64 == 0 { 1.0 } else { -1.0 }
            }
            _ => span(r, -4, 4),
        }
    }
}

/// Registers of a warp from a matrix, by an index formula.
fn fragment(registers: usize, width: u32, mut bits_of: impl FnMut(usize, usize) -> u32) -> Vec<Lanes> {
    let per = (32 / width) as usize;
    let mut out = vec![[0u32; 32]; registers];
    for (register, lanes) in out.iter_mut().enumerate() {
        for (lane, word) in lanes.iter_mut().enumerate() {
            for i in 0..per {
                let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
                *word |= (bits_of(lane, register * per + i) & mask) << (i as u32 * width);
            }
        }
    }
    out
}

/// Runs `desc` on random small matrices and compares with the plain product.
fn check(desc: &MmaDesc, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (m, k) = (desc.shape.m as usize, desc.shape.k as usize);
    let a: Vec<Vec<f64>> = (0..m).map(|_| (0..k).map(|_| random.element(desc.a)).collect()).collect();
    let b: Vec<Vec<f64>> = (0..k).map(|_| (0..8).map(|_| random.element(desc.b)).collect()).collect();
    let c: Vec<Vec<f64>> = (0..m).map(|_| (0..8).map(|_| (random.next() % 65) as f64 - 32.0).collect()).collect();
    let w = width(desc);
    let acc_width = if desc.c == Type::F16 { 16 } else { 32 };
    let count = |elements: usize, width: u32| elements * width as usize / 32 / 32;
    let ra = fragment(count(m * k, w), w, |lane, i| {
        let (row, column) = isa_a(desc.shape.m, desc.shape.k, w, lane, i);
        encode(a[row][column], desc.a, w)
    });
    let rb = fragment(count(k * 8, w), w, |lane, i| {
        let (row, column) = isa_b(desc.shape.m, desc.shape.k, w, lane, i);
        encode(b[row][column], desc.b, w)
    });
    let rc = fragment(count(m * 8, acc_width), acc_width, |lane, i| {
        let (row, column) = isa_c(desc.shape.m, lane, i);
        encode(c[row][column], desc.c, acc_width)
    });

    // Scales: every byte of every lane is random; the formulas of the ISA say which ones count.
    let mut scales = None;
    let mut factor_a = vec![vec![1.0; k]; m];
    let mut factor_b = vec![vec![1.0; 8]; k];
    if let Some(block) = desc.block_scale {
        let mut operand = |is_a: bool| {
            let byte_id = match block.scale_vec {
                1 => random.next() % 4,
                2 => random.next() % 2 * 2,
                _ => 0,
            };
            let thread_id = random.next() % if is_a { 2 } else { 4 };
            let data = std::array::from_fn(|_| {
                u32::from_le_bytes(std::array::from_fn(|_| match block.ty {
                    Type::UE8M0 => 125 + (random.next() % 5) as u8,
                    // 0.5 to 3.5 in e4m3
                    _ => 0x30 + (random.next() % 23) as u8,
                }))
            });
            ScaleInput { data, byte_id, thread_id }
        };
        let (sa, sb) = (operand(true), operand(false));
        let value = |input: &ScaleInput, lane: usize, chunk: usize| {
            let byte = input.data[lane].to_le_bytes()[input.byte_id as usize + chunk];
            if block.ty == Type::UE8M0 {
                2f64.powi(byte as i32 - 127)
            } else {
                formats::decode(byte as u16, Type::E4M3) as f64
            }
        };
        let chunk = k / block.scale_vec as usize;
        for (row, factors) in factor_a.iter_mut().enumerate() {
            // "%laneid % 4 == 0 or 1" for thread-id 0, "2 or 3" for 1; the even one has row `group`, the odd one + 8.
            let lane = (row % 8) * 4 + sa.thread_id as usize * 2 + row / 8;
            for (column, factor) in factors.iter_mut().enumerate() {
                *factor = value(&sa, lane, column / chunk);
            }
        }
        for (row, factors) in factor_b.iter_mut().enumerate() {
            for (column, factor) in factors.iter_mut().enumerate() {
                *factor = value(&sb, column * 4 + sb.thread_id as usize, row / chunk);
            }
        }
        scales = Some((sa, sb));
    }

    let mut rd = vec![[0xdead_beefu32; 32]; rc.len()];
    let pair = scales.as_ref();
    mma(desc, &ra, &rb, &rc, pair.map(|x| &x.0), pair.map(|x| &x.1), &mut rd).unwrap();
    let mut baseline = rd.clone();
    MmaPlan::new(desc).unwrap().run_baseline(&ra, &rb, &rc, pair.map(|x| (&x.0, &x.1)), &mut baseline);
    assert_eq!(rd, baseline, "{desc:?}: the two compiled paths differ");

    let per = (32 / acc_width) as usize;
    for (register, lanes) in rd.iter().enumerate() {
        for (lane, word) in lanes.iter().enumerate() {
            for i in 0..per {
                let (row, column) = isa_c(desc.shape.m, lane, register * per + i);
                let exact: f64 =
                    (0..k).map(|x| a[row][x] * factor_a[row][x] * b[x][column] * factor_b[x][column]).sum::<f64>()
                        + c[row][column];
                let got = decode_d(word >> (i as u32 * acc_width), desc.d);
                let want = if desc.d == Type::F16 {
                    let bits = soft::Value::unpack(exact.to_bits(), soft::Format::F64).pack(
                        soft::Format::F16,
                        Rounding::Rn,
                        false,
                    );
                    formats::f16_to_f32(bits as u16) as f64
                } else {
                    exact
                };
                assert_eq!(got, want, "{desc:?} lane {lane} register {register} element {i} = d[{row}][{column}]");
            }
        }
    }
}

#[test]
fn every_shape_and_type_multiplies_matrices() {
    let all = all();
    assert_eq!(all.len(), 127);
    for desc in &all {
        for seed in 0..3 {
            check(desc, seed);
        }
    }
}

#[test]
fn an_element_goes_exactly_where_the_isa_puts_it() {
    // m16n8k16 bf16, one non-zero in each operand: a[9][12] = 3 sits in lane 4*1 + 2 (columns 12, 13), register 3
    // (rows + 8, columns + 8), low half. b[12][5] = 5 sits in lane 4*5 + 2, register 1, low half. d[9][5] = 15 comes
    // out in lane 4*1 + 2 (columns 4, 5), register 3.
    let plan = desc(16, 16, MmaKind::Plain, Type::BF16, Type::BF16, Type::F32, None);
    let mut a = [[0; 32]; 4];
    let mut b = [[0; 32]; 2];
    a[3][6] = 0x4040;
    b[1][22] = 0x40a0;
    let mut d = [[0; 32]; 4];
    mma(&plan, &a, &b, &[[0; 32]; 4], None, None, &mut d).unwrap();
    let mut want = [[0; 32]; 4];
    want[3][6] = 15.0f32.to_bits();
    assert_eq!(d, want);
}

#[test]
fn sums_are_rounded_once_to_nearest_even() {
    let plan = desc(16, 16, MmaKind::Plain, Type::BF16, Type::BF16, Type::F32, None);
    let run = |a0: f32, a1: f32, c0: f32| {
        let mut a = [[0; 32]; 4];
        let mut b = [[0; 32]; 2];
        a[0][0] = formats::f32_to_bf16(a0) as u32 | (formats::f32_to_bf16(a1) as u32) << 16;
        b[0][0] = 0x3f80_3f80;
        let mut c = [[0; 32]; 4];
        c[0][0] = c0.to_bits();
        let mut d = [[0; 32]; 4];
        mma(&plan, &a, &b, &c, None, None, &mut d).unwrap();
        f32::from_bits(d[0][0])
    };
    // 1 + 2^-24 is the middle above 1: even is 1; one more bit 2^-60 below f64's reach decides it upward.
    assert_eq!(run(2f32.powi(-24), 0.0, 1.0), 1.0);
    assert_eq!(run(2f32.powi(-24), 2f32.powi(-60), 1.0), 1.0f32.next_up());
    // 2^-24 + 2^-53 * ... the same through a sum that f64 itself rounds onto the middle.
    assert_eq!(run(2f32.powi(-24), 2f32.powi(-76), 1.0), 1.0f32.next_up());
    assert_eq!(run(f32::INFINITY, f32::NEG_INFINITY, 0.0).to_bits(), 0x7fff_ffff);
    assert_eq!(run(f32::INFINITY, 1.0, 0.0), f32::INFINITY);
    assert_eq!(run(3e38, 3e38, 0.0), f32::INFINITY);
}

#[test]
fn integer_sums_wrap_or_saturate() {
    let mut wrapping = desc(16, 32, MmaKind::Plain, Type::S8, Type::S8, Type::S32, None);
    let ones = [[0x0101_0101u32; 32]; 4];
    let c = [[i32::MAX as u32; 32]; 4];
    let mut d = [[0; 32]; 4];
    mma(&wrapping, &ones, &ones[..2], &c, None, None, &mut d).unwrap();
    assert_eq!(d, [[(i32::MIN + 31) as u32; 32]; 4]);
    wrapping.satfinite = true;
    mma(&wrapping, &ones, &ones[..2], &c, None, None, &mut d).unwrap();
    assert_eq!(d, c);
}

#[test]
fn scale_selectors_follow_the_table_of_the_isa() {
    assert_eq!(scale::lanes_read(true, 0), 0x3333_3333);
    assert_eq!(scale::lanes_read(true, 1), 0xcccc_cccc);
    assert_eq!(scale::lanes_read(false, 2), 0x4444_4444);
    assert_eq!((scale::bytes_read(1, 3), scale::bytes_read(2, 2), scale::bytes_read(4, 0)), (8, 12, 15));
    // Table 37: valid selectors.
    for (vec, bytes) in [(1, vec![0, 1, 2, 3]), (2, vec![0, 2]), (4, vec![0])] {
        for byte in 0..6 {
            for thread in 0..6 {
                let valid = bytes.contains(&byte);
                assert_eq!(scale::selectors_valid(vec, true, byte, thread), valid && thread < 2);
                assert_eq!(scale::selectors_valid(vec, false, byte, thread), valid && thread < 4);
            }
        }
    }
    for row in 0..16 {
        for thread in 0..2 {
            assert!(scale::lanes_read(true, thread) >> scale::lane_of_row(row, thread) & 1 == 1);
        }
    }
}

#[test]
fn what_no_target_has_is_refused_by_name() {
    use Type::*;
    let scaled = Some((1, UE8M0));
    for (bad, word) in [
        (desc(16, 32, MmaKind::Plain, BF16, BF16, F32, None), "shape"),
        (desc(8, 4, MmaKind::Plain, F16, F16, F32, None), "accumulator"),
        (desc(16, 16, MmaKind::Plain, BF16, F16, F32, None), "element types"),
        (desc(16, 16, MmaKind::Plain, BF16, BF16, F16, None), "accumulator"),
        (desc(16, 16, MmaKind::F8f6f4, E4M3, E4M3, F32, None), "shape of this kind"),
        (desc(16, 32, MmaKind::Plain, E2M1, E2M1, F32, None), "element types"),
        (desc(16, 32, MmaKind::Mxf8f6f4, E4M3, E4M3, F32, None), "block scale"),
        (desc(16, 64, MmaKind::Mxf4, E2M1, E2M1, F32, Some((4, UE8M0))), "block scale"),
        (desc(16, 32, MmaKind::Plain, E4M3, E4M3, F32, scaled), "block scale"),
        (MmaDesc { satfinite: true, ..desc(16, 16, MmaKind::Plain, BF16, BF16, F32, None) }, "satfinite"),
    ] {
        let text = MmaPlan::new(&bad).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
}

/// Rows with a different byte everywhere.
fn numbered_rows() -> Rows {
    std::array::from_fn(|row| std::array::from_fn(|byte| (row * 16 + byte) as u8))
}

#[test]
fn ldmatrix_b16_and_its_transpose() {
    let rows = numbered_rows();
    let half =
        |row: usize, column: usize| u16::from_le_bytes([rows[row][2 * column], rows[row][2 * column + 1]]) as u32;
    for num in [1usize, 2, 4] {
        for trans in [false, true] {
            let map = MatrixMap::load(MatrixShape::M8n8, num as u32, trans, MatrixElement::B16).unwrap();
            assert_eq!((map.registers(), map.data_bytes()), (num, 16));
            assert_eq!(map.providers().count_ones() as usize, 8 * num);
            let mut d = vec![[0xffff_ffff; 32]; num];
            map.registers_from_rows(&rows, &mut d);
            for matrix in 0..num {
                for lane in 0..32 {
                    // Thread 0 gets the first two elements of row 0; a row is shared by four threads.
                    let (row, column) = (lane / 4, lane % 4 * 2);
                    let want = if trans {
                        half(8 * matrix + column, row) | half(8 * matrix + column + 1, row) << 16
                    } else {
                        half(8 * matrix + row, column) | half(8 * matrix + row, column + 1) << 16
                    };
                    assert_eq!(d[matrix][lane], want, "x{num} trans {trans} matrix {matrix} lane {lane}");
                }
            }
            // stmatrix is the inverse.
            let store = MatrixMap::store(MatrixShape::M8n8, num as u32, trans, MatrixElement::B16).unwrap();
            let mut back = [[0; 16]; 32];
            store.rows_from_registers(&d, &mut back);
            assert_eq!(back[..8 * num], rows[..8 * num]);
            assert_eq!(back[8 * num..], [[0; 16]; 32][8 * num..]);
        }
    }
}

#[test]
fn ldmatrix_of_bytes_transposes_sixteen_by_sixteen() {
    let rows = numbered_rows();
    for num in [1usize, 2] {
        let map = MatrixMap::load(MatrixShape::M16n16, num as u32, true, MatrixElement::B8).unwrap();
        assert_eq!((map.registers(), map.providers().count_ones() as usize), (2 * num, 16 * num));
        let mut d = vec![[0; 32]; 2 * num];
        map.registers_from_rows(&rows, &mut d);
        for lane in 0..32 {
            for register in 0..2 * num {
                // Row lane / 4 (+ 8 for the odd register) of the transposed matrix, four columns from 4 * (lane % 4).
                let byte = lane / 4 + 8 * (register % 2);
                let first = 16 * (register / 2) + 4 * (lane % 4);
                let want = u32::from_le_bytes(std::array::from_fn(|i| rows[first + i][byte]));
                assert_eq!(d[register][lane], want, "x{num} register {register} lane {lane}");
            }
        }
    }
    // The transposed load followed by m16n8k32's A layout: row g, bytes 4t..4t+3 of k, then row g + 8.
    let map = MatrixMap::load(MatrixShape::M16n16, 2, true, MatrixElement::B8).unwrap();
    let (mut column_major, mut d) = ([[0; 16]; 32], [[0; 32]; 4]);
    for (k, row) in column_major.iter_mut().enumerate() {
        for (m, byte) in row.iter_mut().enumerate() {
            *byte = (16 * k + m) as u8;
        }
    }
    map.registers_from_rows(&column_major, &mut d);
    for lane in 0..32 {
        for i in 0..16 {
            let (row, column) = isa_a(16, 32, 8, lane, i);
            assert_eq!(d[i / 4][lane] >> (8 * (i % 4)) & 0xff, (16 * column + row) as u32 & 0xff);
        }
    }
}

#[test]
fn ldmatrix_unpacks_four_and_six_bits() {
    // Element e of row r is (e + r) in its width, packed from the low end; the padding is all ones.
    for (element, width) in [(MatrixElement::B8x16B4x16P64, 4u32), (MatrixElement::B8x16B6x16P32, 6)] {
        let value = |row: usize, e: usize| (e + row) as u128 & ((1 << width) - 1);
        let rows: Rows = std::array::from_fn(|row| {
            let mut bits = u128::MAX << (16 * width);
            for e in 0..16 {
                bits |= value(row, e) << (e as u32 * width);
            }
            bits.to_le_bytes()
        });
        for num in [1usize, 2, 4] {
            let map = MatrixMap::load(MatrixShape::M8n16, num as u32, false, element).unwrap();
            assert_eq!(map.data_bytes() as u32, 2 * width);
            let mut d = vec![[0; 32]; num];
            map.registers_from_rows(&rows, &mut d);
            for (register, lanes) in d.iter().enumerate() {
                for (lane, word) in lanes.iter().enumerate() {
                    for i in 0..4 {
                        let want = value(8 * register + lane / 4, lane % 4 * 4 + i) as u32;
                        assert_eq!(word >> (8 * i) & 0xff, want);
                    }
                }
            }
        }
        let map = MatrixMap::load(MatrixShape::M16n16, 1, true, element).unwrap();
        let mut d = [[0; 32]; 2];
        map.registers_from_rows(&rows, &mut d);
        assert_eq!(d[1][4 * 3 + 2] >> 8 & 0xff, value(4 * 2 + 1, 3 + 8) as u32);
    }
    assert!(MatrixMap::load(MatrixShape::M16n16, 4, true, MatrixElement::B8).is_none());
    assert!(MatrixMap::load(MatrixShape::M16n16, 1, false, MatrixElement::B8).is_none());
    assert!(MatrixMap::load(MatrixShape::M8n8, 3, false, MatrixElement::B16).is_none());
}

#[test]
fn stmatrix_of_bytes_writes_accumulator_fragments_transposed() {
    // e0, e1 are row g, columns 2t, 2t + 1 of a 16 x 8 matrix, e2, e3 row g + 8: the accumulator layout. Memory gets
    // the transpose: row = column of the matrix.
    for num in [1usize, 2, 4] {
        let map = MatrixMap::store(MatrixShape::M16n8, num as u32, true, MatrixElement::B8).unwrap();
        let registers: Vec<Lanes> = (0..num)
            .map(|matrix| {
                std::array::from_fn(|lane| {
                    u32::from_le_bytes(std::array::from_fn(|i| {
                        let (row, column) = isa_c(16, lane, i);
                        (row * 8 + column + matrix * 3) as u8
                    }))
                })
            })
            .collect();
        let mut rows = [[0xee; 16]; 32];
        map.rows_from_registers(&registers, &mut rows);
        for (provider, row) in rows.iter().enumerate() {
            for (byte, got) in row.iter().enumerate() {
                let want = if provider < 8 * num { (byte * 8 + provider % 8 + provider / 8 * 3) as u8 } else { 0xee };
                assert_eq!(*got, want, "x{num} row {provider} byte {byte}");
            }
        }
    }
    assert!(MatrixMap::store(MatrixShape::M16n8, 1, false, MatrixElement::B8).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn random_matrices_multiply(index in 0usize..127, seed in any::<u64>()) {
        check(&all()[index], seed);
    }

    /// movmatrix equals a store and a transposed load through memory.
    #[test]
    fn movmatrix_transposes(a in proptest::array::uniform32(any::<u32>())) {
        let mut rows = [[0; 16]; 32];
        MatrixMap::store(MatrixShape::M8n8, 1, false, MatrixElement::B16).unwrap().rows_from_registers(&[a], &mut rows);
        let mut d = [[0; 32]];
        MatrixMap::load(MatrixShape::M8n8, 1, true, MatrixElement::B16).unwrap().registers_from_rows(&rows, &mut d);
        prop_assert_eq!(movmatrix(&a), d[0]);
        prop_assert_eq!(movmatrix(&movmatrix(&a)), a);
    }

    /// Any bits at all: both compiled paths agree.
    #[test]
    fn compiled_paths_agree_on_any_bits(index in 0usize..127, seed in any::<u64>()) {
        let desc = all()[index];
        let plan = MmaPlan::new(&desc).unwrap();
        let mut random = Random(seed | 1);
        let mut fill = |n: usize| -> Vec<Lanes> { (0..n).map(|_| std::array::from_fn(|_| random.next() << 12 ^ random.next())).collect() };
        let f = *plan.fragments();
        let (a, b, c) = (fill(f.a.registers()), fill(f.b.registers()), fill(f.c.registers()));
        let scales = fill(2);
        let sa = ScaleInput { data: scales[0], byte_id: 0, thread_id: 1 };
        let sb = ScaleInput { data: scales[1], byte_id: 0, thread_id: 3 };
        let (mut d, mut e) = (fill(f.d.registers()), fill(f.d.registers()));
        plan.run(&a, &b, &c, Some((&sa, &sb)), &mut d);
        plan.run_baseline(&a, &b, &c, Some((&sa, &sb)), &mut e);
        prop_assert_eq!(d, e);
    }
}
