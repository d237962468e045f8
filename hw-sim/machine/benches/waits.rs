//! How long it takes from a store to the block that waits for it: two blocks hand a count to and
//! fro, by stores and loops that poll. `cargo bench -p hwsim-machine --bench waits`.

use hwsim_machine::description::Description;
use hwsim_machine::graph::Shape;
use hwsim_machine::{Context, LaunchRequest, Machine, Module};
use std::sync::Arc;
use std::time::Instant;

/// `pass(words, rounds)`: block `i` waits until word `i` has come to the round, pauses so many
/// iterations, and raises the other word.
const KERNEL: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
.visible .entry pass(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<9>;\n\
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];\n\
 mov.u32 %r1, %ctaid.x; xor.b32 %r2, %r1, 1;\n\
 mad.wide.u32 %rd4, %r1, 512, %rd1; mad.wide.u32 %rd5, %r2, 512, %rd1; mov.u64 %rd6, 0;\n\
 ROUND: add.u64 %rd6, %rd6, 1;\n\
 setp.eq.u32 %p, %r1, 0; @%p bra GO;\n\
 WAIT: ld.acquire.gpu.u64 %rd7, [%rd4]; setp.lt.u64 %p, %rd7, %rd6; @%p bra WAIT;\n\
 GO: mov.u64 %rd8, 0;\n\
 PAUSE: add.u64 %rd8, %rd8, 1; setp.lt.u64 %p, %rd8, %rd3; @%p bra PAUSE;\n\
 st.release.gpu.global.u64 [%rd5], %rd6;\n\
 setp.eq.u32 %p, %r1, 1; @%p bra NEXT;\n\
 BACK: ld.acquire.gpu.u64 %rd7, [%rd4]; setp.lt.u64 %p, %rd7, %rd6; @%p bra BACK;\n\
 NEXT: setp.lt.u64 %p, %rd6, %rd2; @%p bra ROUND; ret; }\n";

fn main() {
    const ROUNDS: u64 = 5000;
    const SERIES: usize = 7;
    for workers in [1, 2] {
        let description = Description::builtin("one-gpu").expect("a built-in machine");
        let machine = Machine::with_workers(description, workers).expect("a machine");
        let context = Context::new(Arc::clone(&machine), 0, 0);
        let module = Module::load(&context, KERNEL).expect("the kernel");
        let function = module.function("pass").expect("the kernel");
        let series = |pause: u64| {
            let mut times: Vec<f64> = (0..SERIES)
                .map(|_| {
                    let memory = &machine.memory;
                    let words = memory.allocate(0, 4096, false, context.id).expect("memory");
                    let shape = Shape {
                        grid: [2, 1, 1],
                        block: [32, 1, 1],
                        dynamic_shared_bytes: 0,
                        cooperative: false,
                        cluster: None,
                    };
                    let words = [words, ROUNDS, pause];
                    let params = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let began = Instant::now();
                    let request = LaunchRequest { function: &function, shape, params };
                    request.enqueue(context.legacy_stream()).expect("a launch");
                    context.synchronize().expect("the kernel ends");
                    began.elapsed().as_secs_f64() * 1e6 / (2 * ROUNDS) as f64
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[SERIES / 2]
        };
        // Long enough a pause that who waits sleeps; its own time is known from the other.
        let (short, long, longest) = (series(1), series(100), series(200));
        let pause = longest - long;
        println!(
            "{workers} workers: {short:.2} us from one store to the next; {:.2} us beyond a pause \
             of {pause:.2} us",
            long - pause
        );
        machine.stop();
    }
}
