//! Kernels as nvcc, NVRTC and clang emit them, against what their sources say.

use std::path::Path;

use hwsim_ptx::FaultKind;

use crate::common::{BASE, Bench};

/// The fixtures of one source by those compilers that have it.
fn each(name: &str, f: impl Fn(&Bench)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut seen = 0;
    for compiler in ["nvcc13_sm75", "nvrtc12_sm70"] {
        for variant in ["", ".debug", ".lineinfo", ".sm80"] {
            let path = root.join(compiler).join(format!("{name}{variant}.ptx"));
            if let Ok(text) = std::fs::read_to_string(path) {
                f(&Bench::new(&text));
                seen += 1;
            }
        }
    }
    assert!(seen >= 2, "the fixtures of {name} are missing");
}

fn at(offset: u64) -> u64 {
    BASE + offset
}

#[test]
fn vector_add() {
    each("vector_add", |bench| {
        let a: Vec<f32> = (0..1000).map(|i| i as f32 * 0.25).collect();
        let b: Vec<f32> = (0..1000).map(|i| 1.0 / (i + 1) as f32).collect();
        bench.put(0, &a);
        bench.put(4096, &b);
        bench.run("vector_add", 4, 256, &[at(0), at(4096), at(8192), 1000]).unwrap();
        let c = bench.get::<f32>(8192, 1001);
        for i in 0..1000 {
            assert_eq!(c[i], a[i] + b[i]);
        }
        assert_eq!(c[1000], 0.0, "past n nothing is written");
    });
}

#[test]
fn wide_copies() {
    each("vector_add", |bench| {
        let from: Vec<u64> = (0..1024).map(|i| i * 0x1_0001_0001).collect();
        bench.put(0, &from);
        let pairs: Vec<i16> = (0..1024).collect();
        bench.put(32768, &pairs);
        bench.run("copy_wide", 2, 256, &[at(0), at(8192), at(16384), at(32768)]).unwrap();
        assert_eq!(bench.get::<u64>(8192, 1024), from);
        assert_eq!(bench.get::<u8>(16384 + 4 * 300, 4), [1, 2, 44, 1]);
        assert_eq!(bench.get::<i16>(32768, 4), [1, 1, 5, 3]);
    });
}

#[test]
fn shared_memory() {
    each("shared", |bench| {
        let values: Vec<f32> = (0..512).map(|i| (i % 17) as f32).collect();
        bench.put(0, &values);
        bench.run("reduce", 2, 256, &[at(0), at(4096)]).unwrap();
        let sums: Vec<f32> = values.chunks(256).map(|chunk| chunk.iter().sum()).collect();
        assert_eq!(bench.get::<f32>(4096, 2), sums);

        let doubles: Vec<f64> = (0..64).map(f64::from).collect();
        bench.put(0, &doubles);
        bench.run("reverse_dynamic", 1, 64, &[at(0)]).unwrap();
        let reversed: Vec<f64> = doubles.iter().rev().copied().collect();
        assert_eq!(bench.get::<f64>(0, 64), reversed);

        let signs: Vec<i32> = (0..96).map(|i| i - 10).collect();
        bench.put(0, &signs);
        bench.run("votes", 1, 96, &[at(0), at(4096)]).unwrap();
        assert_eq!(bench.get::<i32>(4096, 96), [85 * 4 + 1; 96]);

        bench.put(0, &[77_i32; 1]);
        bench.run("named_barriers", 1, 96, &[at(0)]).unwrap();
        assert_eq!(bench.get::<i32>(32 * 4, 32), [77; 32]);
    });
}

#[test]
fn calls_of_every_kind() {
    each("calls", |bench| {
        let floats: Vec<f32> = (0..64).map(|i| i as f32 + 0.5).collect();
        let ints: Vec<i32> = (0..64).map(|i| i % 7).collect();
        let numbers: Vec<u32> = (0..64).map(|i| i % 9).collect();
        bench.put(0, &floats);
        bench.put(4096, &(0..64 * 8).map(|i| i as f64).collect::<Vec<_>>());
        bench.put(16384, &ints);
        bench.put(20480, &numbers);
        let before = bench.get::<i32>(4096, 64 * 8);
        bench.run("direct_calls", 1, 64, &[at(0), at(4096), at(16384), at(20480)]).unwrap();
        let factorial = |n: u32| (1..=n).product::<u32>();
        let (f, i, u) =
            (bench.get::<f32>(0, 64), bench.get::<i32>(16384, 64), bench.get::<u32>(20480, 64));
        let wide = bench.get::<i32>(4096, 64 * 8);
        for t in 0..64 {
            assert_eq!(f[t], floats[t] * ints[t] as f32);
            assert_eq!(i[t], ints[t] + 1);
            assert_eq!(u[t], factorial(numbers[t]) + (t as u32 & 1), "thread {t}");
            let word = t * 8 + (ints[t] & 3) as usize;
            assert_eq!(wide[word], before[word] + ints[t]);
        }

        let which: Vec<i32> = (0..32).collect();
        bench.put(0, &which);
        bench.put(4096, &[10_i32; 32]);
        bench.run("indirect_calls", 1, 32, &[at(0), at(4096), 0]).unwrap();
        for (t, value) in bench.get::<i32>(4096, 32).into_iter().enumerate() {
            assert_eq!(value, if t % 2 == 0 { 13 } else { 7 });
        }

        bench.put(0, &(0..100).map(|i| i * i).collect::<Vec<i32>>());
        bench.run("local_array", 1, 64, &[at(0), at(4096), 100]).unwrap();
        let mut histogram = [0; 32];
        (0..100).for_each(|i| histogram[(i * i) & 31] += 1);
        for (t, value) in bench.get::<i32>(4096, 64).into_iter().enumerate() {
            assert_eq!(value, histogram[t & 31]);
        }

        bench.put(0, &[3.0_f32, 5.0]);
        bench.run("virtual_calls", 1, 2, &[at(0)]).unwrap();
        assert_eq!(bench.get::<f32>(0, 2), [10.0, 9.0]);
    });
}

#[test]
fn module_variables() {
    each("globals", |bench| {
        bench.run("read_all", 1, 6, &[at(0), at(4096)]).unwrap();
        let weights = [0.25_f32, -0.0, 1e30, 2.5];
        let limits = [-1_i32, 1 << 30];
        let table = [[1_i16, -2], [3, 0], [0, 0]];
        let bytes = b"ring\0";
        for (t, got) in bench.get::<f32>(0, 6).into_iter().enumerate() {
            let mut sum = -5_f32 + 1.0 / 3.0 + 0.1 + f32::from(table[t % 3][t & 1]);
            sum += f32::from(bytes[t & 3]);
            sum += 1.0 * 1.5 + f32::from(b'f');
            sum += 2.0 * 0.5 + f32::from(b'l');
            sum += weights[t & 3] + limits[t & 1] as f32 + 2.0 + 3.0 + 1.0;
            let close = (got - sum).abs() <= sum.abs() * 1e-5;
            assert!(close, "thread {t}: {got} is not {sum}");
        }
        assert_eq!(bench.get::<i64>(4096, 6), [i64::MAX; 6]);
    });
}

#[test]
fn warp_exchange() {
    each("warp", |bench| {
        let data: Vec<i32> = (0..32).map(|i| i * 5 % 23).collect();
        let floats: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let wide: Vec<f64> = (0..32).map(|i| f64::from(i) * 1.5).collect();
        bench.put(0, &data);
        bench.put(4096, &floats);
        bench.put(8192, &wide);
        bench.run("shuffles", 1, 32, &[at(0), at(4096), at(8192)]).unwrap();
        let mut v = data;
        let step = |v: &[i32], source: &dyn Fn(usize) -> usize| -> Vec<i32> {
            (0..32).map(|t| v[t] + v[source(t)]).collect()
        };
        v = step(&v, &|_| 3);
        v = step(&v, &|t| t.saturating_sub(1).max(if t == 0 { 0 } else { t - 1 }));
        v = step(&v, &|t| if t % 16 + 2 < 16 { t + 2 } else { t });
        v = step(&v, &|t| t ^ 16);
        assert_eq!(bench.get::<i32>(0, 32), v);
        assert_eq!(bench.get::<f32>(4096, 32), [496.0; 32]);

        let bits: Vec<i32> = (0..32).map(|i| i / 4).collect();
        bench.put(0, &bits);
        bench.run("votes", 1, 32, &[at(0), at(4096)]).unwrap();
        let out = bench.get::<u32>(4096, 192);
        for t in 0..32 {
            assert_eq!(out[t], 0xf0f0_f0f0);
            assert_eq!(out[t + 32], 1);
            assert_eq!(out[t + 64], u32::MAX);
            assert_eq!(out[t + 96], 0xf << (t / 4 * 4));
            assert_eq!(out[t + 128], 0);
            assert_eq!(out[t + 160], 0xf << (t / 4 * 4));
        }

        let start: Vec<i32> = (0..64).map(|i| i * 37 % 101).collect();
        bench.put(0, &start);
        bench.run("divergent", 1, 64, &[at(0)]).unwrap();
        let got = bench.get::<i32>(0, 64);
        for t in 1..64 {
            let mut v = start[t];
            while v > 0 {
                v = if v & 1 == 1 { v - 3 } else { v >> 1 };
                if v == 5 {
                    break;
                }
            }
            assert_eq!(got[t], v, "thread {t}");
        }
        assert_eq!(got[0], 31);
    });
}

#[test]
fn switches() {
    each("switches", |bench| {
        bench.put(0, &[0_u32, 0, 2, 6, 1, 10, 5, 3, 7, 42, 0]);
        bench.put(4096, &[2.0_f32, 3.0]);
        bench.run("dispatch", 1, 1, &[at(0), at(4096), 11]).unwrap();
        let (mut a, mut b) = (2.0_f32, 3.0_f32);
        a += b;
        a += b;
        a *= b;
        std::mem::swap(&mut a, &mut b);
        a -= b;
        a = -a;
        a = a.max(b);
        a /= b;
        a = a.sqrt();
        b += 1.0;
        a += b;
        assert_eq!(bench.get::<f32>(4096, 1), [a]);

        let grid: Vec<i32> = (0..64).collect();
        bench.put(0, &grid);
        bench.run("search", 1, 1, &[at(0), at(4096), 42 << 32 | 8]).unwrap();
        assert_eq!(bench.get::<u32>(4096, 1), [5 << 16 | 2]);
    });
}

#[test]
fn atomics() {
    each("atomics", |bench| {
        bench.run("integers", 1, 64, &[at(0), at(4096), at(8192), at(16384)]).unwrap();
        assert_eq!(bench.get::<i32>(0, 3), [-64, 0, 63]);
        let u = bench.get::<u32>(4096, 8);
        assert_eq!(u[1..6], [0, 63, 0, 63, (0..64).fold(0, |a, b| a ^ b)]);
        assert_eq!(u[6], 64 % 18);
        assert_eq!(bench.get::<u64>(8192, 5), [64 << 40, 7, 9, 5, 0]);
        bench.run("floats", 1, 64, &[at(32768), at(36864), at(40960)]).unwrap();
        assert_eq!(bench.get::<f32>(32768, 3), [96.0, 128.0, 3.0]);
        assert_eq!(bench.get::<f64>(36864, 1), [16.0]);
        bench.run("spin_lock", 2, 64, &[at(49152), at(49156)]).unwrap();
        assert_eq!(bench.get::<i32>(49152, 2), [0, 128]);
    });
}

#[test]
fn ordering() {
    each("ordering", |bench| {
        for position in 0..10 {
            bench.run("push", 1, 1, &[at(0), at(4096), at(64)]).unwrap();
            let pair = bench.get::<u64>(4096 + 16 * position, 2);
            assert_eq!(pair, [position as u64, !(position as u64)]);
        }
        assert_eq!(bench.get::<u64>(64, 1), [10]);
        // The clock of the test ticks with each look, so the deadline passes.
        bench.run("wait_with_deadline", 1, 32, &[at(64), 11, 50, at(128)]).unwrap();
        assert_eq!(bench.get::<i32>(128, 1), [1]);
        bench.run("scopes_in_assembly", 1, 1, &[at(256), 7]).unwrap();
        assert_eq!(bench.get::<i32>(256, 2), [17 + 13, 1]);
    });
}

#[test]
fn half_precision() {
    each("half", |bench| {
        let half = |value: f32| half::f16::from_f32(value).to_bits();
        bench.put(0, &[half(1.5); 32]);
        bench.put(4096, &[half(0.25); 32]);
        bench.run("half_math", 1, 32, &[at(0), at(4096), at(8192), at(16384)]).unwrap();
        // 1.5 * 0.25 + (1.5 + 0.25 * 1.25), each step exact in an f16.
        assert_eq!(bench.get::<u16>(8192, 32), [half(1.5 * 0.25 + 1.5 + 0.25 * 1.25); 32]);
        assert_eq!(bench.get::<f32>(16384, 32), [1.25; 32]);
        assert_eq!(bench.get::<u16>(8192 + 128, 32), [half(6.0); 32]);
        assert_eq!(bench.get::<u16>(8192 + 192 + 10, 1), [half(5.0)]);
    });
}

#[test]
fn printing_and_assertions() {
    each("printing", |bench| {
        bench.put(0, b"dove\0");
        let x = 2.5_f64.to_bits();
        bench.run("say", 1, 2, &[7, x, at(0)]).unwrap();
        let printed = bench.clock.printed.lock().unwrap().clone();
        let line = |t| format!("thread {t} of 7: 2.500000 dove {}\n", 7_i64 << 33);
        assert_eq!(printed, format!("{}{}done\ndone\n", line(0), line(1)));

        bench.put(0, &[1_i32; 32]);
        bench.run("check", 1, 32, &[at(0)]).unwrap();
        bench.put(20, &[101_i32]);
        let fault = bench.run("check", 1, 32, &[at(0)]).unwrap_err();
        assert_eq!((fault.kind, fault.thread), (FaultKind::Trap, [5, 0, 0]), "{fault}");
        // There is no device heap: it is always exhausted.
        bench.put(4096, &[9_u64; 4]);
        bench.run("allocate", 1, 4, &[at(4096)]).unwrap();
        assert_eq!(bench.get::<u64>(4096, 4), [0; 4]);
    });
}
