//! What a worker computes and what its network carries, in time.

use std::collections::VecDeque;

/// Steps that are played: the last one stands for all.
const STEPS: usize = 4;

/// What one worker does for a layer, in seconds.
#[derive(Clone, Debug)]
pub struct Part {
    /// The layer's name.
    pub name: String,
    /// Computes forwards; the gradients of weights and of inputs take as long each.
    pub forward: f64,
    /// Waits for activations of others, before it computes forwards; as long for their gradients.
    pub exchange: f64,
    /// The network adds the gradients of the weights.
    pub gradient: f64,
    /// Bytes of these.
    pub gradient_bytes: f64,
}

/// What fills a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The worker computes.
    Compute,
    /// The worker waits for the activations of others.
    Exchange,
    /// The network adds gradients.
    Gradient,
}

/// A piece of the last step.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What it is.
    pub activity: Activity,
    /// The layer, or the first of several.
    pub name: String,
    /// Seconds from the beginning of the step.
    pub start: f64,
    /// See `start`.
    pub end: f64,
}

/// One step, in the long run.
#[derive(Clone, Debug)]
pub struct Step {
    /// Seconds from one step to the next.
    pub period: f64,
    /// Of these it computes.
    pub compute: f64,
    /// Of these it waits for activations.
    pub exchange: f64,
    /// The network adds gradients for so long.
    pub gradient: f64,
    /// What happened when, in the last step.
    pub spans: Vec<Span>,
}

impl Step {
    /// Seconds in which the worker waits for gradients.
    pub fn waits(&self) -> f64 {
        (self.period - self.compute - self.exchange).max(0.0)
    }
}

/// Gradients that travel together.
struct Load {
    /// From when on they are there.
    ready: f64,
    left: f64,
    layers: std::ops::Range<usize>,
}

struct World<'a> {
    parts: &'a [Part],
    now: f64,
    /// The network has been played so far.
    network: f64,
    queue: VecDeque<Load>,
    /// When each layer's gradients have come in.
    arrived: Vec<f64>,
    spans: Vec<Span>,
}

impl World<'_> {
    fn span(&mut self, activity: Activity, layer: usize, start: f64, end: f64) {
        if end > start {
            let name = self.parts[layer].name.clone();
            self.spans.push(Span { activity, name, start, end });
        }
    }

    fn compute(&mut self, layer: usize, seconds: f64) {
        let start = self.now;
        self.now += seconds;
        self.span(Activity::Compute, layer, start, self.now);
    }

    /// Gradients travel until then, in the order in which they came.
    fn carry(&mut self, until: f64) {
        while let Some(load) = self.queue.front_mut() {
            let start = self.network.max(load.ready);
            if start >= until {
                break;
            }
            let is_done = start + load.left <= until;
            let end = if is_done { start + load.left } else { until };
            load.left -= end - start;
            let layers = load.layers.clone();
            self.network = end;
            self.span(Activity::Gradient, layers.start, start, end);
            if is_done {
                self.arrived[layers].fill(end);
                self.queue.pop_front();
            }
        }
        self.network = self.network.max(until);
    }

    /// The worker waits, and gradients stand back.
    fn exchange(&mut self, layer: usize) {
        let seconds = self.parts[layer].exchange;
        if seconds == 0.0 {
            return;
        }
        self.carry(self.now);
        let start = self.now;
        self.now += seconds;
        self.network = self.now;
        self.span(Activity::Exchange, layer, start, self.now);
    }

    /// Goes on once a layer's gradients of the step before have come in.
    fn await_gradients(&mut self, layer: usize) {
        if let Some(place) = self.queue.iter().position(|load| load.layers.contains(&layer)) {
            let before = self.queue.iter().take(place + 1);
            let end = before.fold(self.network, |end, load| end.max(load.ready) + load.left);
            self.carry(end);
        }
        self.now = self.now.max(self.arrived[layer]);
    }

    fn step(&mut self, bucket_bytes: f64) {
        let count = self.parts.len();
        for layer in 0..count {
            self.await_gradients(layer);
            self.exchange(layer);
            self.compute(layer, self.parts[layer].forward);
        }
        let mut waiting = (count, 0.0, 0.0);
        for layer in (0..count).rev() {
            let part = &self.parts[layer];
            let (forward, seconds, bytes) = (part.forward, part.gradient, part.gradient_bytes);
            self.compute(layer, forward);
            waiting = (waiting.0, waiting.1 + seconds, waiting.2 + bytes);
            if waiting.2 >= bucket_bytes || layer == 0 {
                let (end, left, _) = waiting;
                self.queue.push_back(Load { ready: self.now, left, layers: layer..end });
                waiting = (layer, 0.0, 0.0);
            }
            // The input of the first layer has no gradient.
            if layer > 0 {
                self.compute(layer, forward);
                self.exchange(layer);
            }
        }
    }
}

/// One step of many.
pub fn step(parts: &[Part], bucket_bytes: f64) -> Step {
    let mut world = World {
        parts,
        now: 0.0,
        network: 0.0,
        queue: VecDeque::new(),
        arrived: vec![0.0; parts.len()],
        spans: Vec::new(),
    };
    let mut starts = Vec::new();
    for _ in 0..STEPS {
        starts.push(world.now);
        world.step(bucket_bytes);
    }
    let end = world.now;
    let last = starts[STEPS - 1];
    let spans = world.spans.into_iter().filter(|span| span.end > last && span.start < end);
    let spans: Vec<Span> = spans
        .map(|span| Span { start: (span.start - last).max(0.0), end: span.end - last, ..span })
        .collect();
    let total = |activity: Activity| {
        let of_it = spans.iter().filter(|span| span.activity == activity);
        of_it.fold(0.0, |sum, span| sum + (span.end - span.start))
    };
    let (compute, exchange) = (total(Activity::Compute), total(Activity::Exchange));
    let gradient = parts.iter().map(|part| part.gradient).sum();
    Step { period: end - last, compute, exchange, gradient, spans }
}
