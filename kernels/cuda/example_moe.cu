// Kernels of examples/moe.rs: the router and the experts of a mixture-of-experts layer, forwards
// and backwards; example_train.cu has those of the dense layers. As there, each thread computes one
// value and adds in a fixed order.
//
// A row is a token that has reached a GPU for one expert of it or for several. It has `top_k` local
// experts, -1 where the choice is another GPU's. An expert is one fully connected layer from
// `hidden` to `hidden`, with the activation: (hidden + 1) * hidden parameters, a row of weights for
// each input, and the biases behind them.
//
// Choices of one row are added in groups of `group` experts, and then the groups: what GPUs add
// that have `group` experts each, and combine after them. So one GPU with all experts gives the
// same bits.

#include "ptx.cuh"

namespace {

namespace ptx = ringdove::ptx;
using ringdove::s32;
using ringdove::u32;

struct Shape {
    // The most rows.
    u32 rows;
    u32 hidden;
    u32 experts;
    u32 top_k;
    u32 group;
};

// Which value this thread computes. Beyond the last there is nothing to do.
RINGDOVE_INLINE u32 own_index() {
    return ptx::block_index() * ptx::thread_count() + ptx::thread_index();
}

RINGDOVE_INLINE float softsign(float x) { return x / (1.0f + __builtin_fabsf(x)); }

RINGDOVE_INLINE float slope_at(float value) {
    const float rest = 1.0f - __builtin_fabsf(value);
    return rest * rest;
}

RINGDOVE_INLINE u32 parameters_of(const Shape& shape, s32 expert) {
    return u32(expert) * (shape.hidden + 1) * shape.hidden;
}

// The sum of `term(k)` over a row's choices, group by group in the order of their first choices.
template <typename Term>
RINGDOVE_INLINE float grouped_sum(const Shape& shape, const s32* experts, Term term) {
    float sum = 0;
    for (u32 k = 0; k < shape.top_k; k++) {
        const s32 group = experts[k] < 0 ? -1 : experts[k] / s32(shape.group);
        bool is_done = group < 0;
        for (u32 earlier = 0; earlier < k && !is_done; earlier++) {
            is_done = experts[earlier] >= 0 && experts[earlier] / s32(shape.group) == group;
        }
        if (is_done) {
            continue;
        }
        float part = 0;
        for (u32 later = k; later < shape.top_k; later++) {
            if (experts[later] >= 0 && experts[later] / s32(shape.group) == group) {
                part += term(later);
            }
        }
        sum += part;
    }
    return sum;
}

}  // namespace

// scores[token][e] = the router's logit. One thread for each.
extern "C" __global__ void moe_scores(const float* tokens, const float* router, float* scores,
                                      Shape shape) {
    const u32 index = own_index();
    if (index >= shape.rows * shape.experts) {
        return;
    }
    const u32 token = index / shape.experts;
    const u32 expert = index % shape.experts;
    float sum = router[shape.hidden * shape.experts + expert];
    for (u32 i = 0; i < shape.hidden; i++) {
        sum += tokens[token * shape.hidden + i] * router[i * shape.experts + expert];
    }
    scores[index] = sum;
}

// The choices of each token: the largest logits, the lower expert of equals. Their weights are
// 1 + softsign(logit), over the sum of these.
extern "C" __global__ void moe_choose(const float* scores, s32* choices, float* weights,
                                      Shape shape) {
    const u32 token = own_index();
    if (token >= shape.rows) {
        return;
    }
    const float* own = scores + token * shape.experts;
    s32* chosen = choices + token * shape.top_k;
    float total = 0;
    for (u32 k = 0; k < shape.top_k; k++) {
        s32 best = -1;
        for (s32 expert = 0; expert < s32(shape.experts); expert++) {
            bool is_taken = false;
            for (u32 earlier = 0; earlier < k; earlier++) {
                is_taken = is_taken || chosen[earlier] == expert;
            }
            if (!is_taken && (best < 0 || own[expert] > own[best])) {
                best = expert;
            }
        }
        chosen[k] = best;
        weights[token * shape.top_k + k] = 1.0f + softsign(own[best]);
        total += 1.0f + softsign(own[best]);
    }
    for (u32 k = 0; k < shape.top_k; k++) {
        weights[token * shape.top_k + k] /= total;
    }
}

// values[row][k][o] = activation of the expert of choice k. One thread for each; none of them for
// other GPUs' choices and behind the last row.
extern "C" __global__ void moe_activate(const float* rows, const s32* experts, const u32* count,
                                        const float* parameters, float* values, Shape shape) {
    const u32 index = own_index();
    const u32 choice = index / shape.hidden;
    const u32 column = index % shape.hidden;
    if (choice >= *count * shape.top_k || experts[choice] < 0) {
        return;
    }
    const float* own = parameters + parameters_of(shape, experts[choice]);
    const float* row = rows + choice / shape.top_k * shape.hidden;
    float sum = own[shape.hidden * shape.hidden + column];
    for (u32 i = 0; i < shape.hidden; i++) {
        sum += row[i] * own[i * shape.hidden + column];
    }
    values[index] = softsign(sum);
}

// results[row][o] = sum over choices of weight * value.
extern "C" __global__ void moe_results(const s32* experts, const float* weights, const u32* count,
                                       const float* values, float* results, Shape shape) {
    const u32 index = own_index();
    const u32 row = index / shape.hidden;
    if (row >= *count) {
        return;
    }
    const u32 first = row * shape.top_k;
    results[index] = grouped_sum(shape, experts + first, [&](u32 k) {
        return weights[first + k] * values[(first + k) * shape.hidden + index % shape.hidden];
    });
}

// deltas[row][k][o]: derivatives of the loss by what stands before the activation; and
// by_weights[row][k], by the weight of the choice. One thread for each choice.
extern "C" __global__ void moe_deltas(const s32* experts, const float* weights, const u32* count,
                                      const float* values, const float* by_results, float* deltas,
                                      float* by_weights, Shape shape) {
    const u32 choice = own_index();
    if (choice >= *count * shape.top_k) {
        return;
    }
    float sum = 0;
    for (u32 o = 0; o < shape.hidden && experts[choice] >= 0; o++) {
        const float by_result = by_results[choice / shape.top_k * shape.hidden + o];
        const float value = values[choice * shape.hidden + o];
        deltas[choice * shape.hidden + o] = weights[choice] * by_result * slope_at(value);
        sum += by_result * value;
    }
    by_weights[choice] = sum;
}

// by_rows[row][i]: derivatives by the row.
extern "C" __global__ void moe_backward(const s32* experts, const u32* count,
                                        const float* parameters, const float* deltas,
                                        float* by_rows, Shape shape) {
    const u32 index = own_index();
    const u32 row = index / shape.hidden;
    if (row >= *count) {
        return;
    }
    const u32 first = row * shape.top_k;
    by_rows[index] = grouped_sum(shape, experts + first, [&](u32 k) {
        const float* own = parameters + parameters_of(shape, experts[first + k]) +
                           index % shape.hidden * shape.hidden;
        float sum = 0;
        for (u32 o = 0; o < shape.hidden; o++) {
            sum += deltas[(first + k) * shape.hidden + o] * own[o];
        }
        return sum;
    });
}

// gradients[e][i][o] = sum over the expert's rows of row[i] * delta[o], in the order of the rows.
extern "C" __global__ void moe_gradients(const float* rows, const s32* experts, const u32* count,
                                         const float* deltas, float* gradients, Shape shape) {
    const u32 index = own_index();
    const u32 of_one = (shape.hidden + 1) * shape.hidden;
    if (index >= shape.experts * of_one) {
        return;
    }
    const s32 expert = s32(index / of_one);
    const u32 input = index % of_one / shape.hidden;
    const u32 choices = *count * shape.top_k;
    float sum = 0;
    for (u32 choice = 0; choice < choices; choice++) {
        if (experts[choice] == expert) {
            const float value =
                input < shape.hidden ? rows[choice / shape.top_k * shape.hidden + input] : 1.0f;
            sum += value * deltas[choice * shape.hidden + index % shape.hidden];
        }
    }
    gradients[index] = sum;
}

// by_scores[token][e]: derivatives by the logits. One thread for each token.
extern "C" __global__ void moe_router_deltas(const float* scores, const s32* choices,
                                             const float* weights, const float* by_weights,
                                             float* by_scores, Shape shape) {
    const u32 token = own_index();
    if (token >= shape.rows) {
        return;
    }
    const float* own = scores + token * shape.experts;
    const u32 first = token * shape.top_k;
    float total = 0;
    float mean = 0;
    for (u32 k = 0; k < shape.top_k; k++) {
        total += 1.0f + softsign(own[choices[first + k]]);
        mean += weights[first + k] * by_weights[first + k];
    }
    for (u32 expert = 0; expert < shape.experts; expert++) {
        by_scores[token * shape.experts + expert] = 0;
    }
    for (u32 k = 0; k < shape.top_k; k++) {
        const u32 expert = u32(choices[first + k]);
        by_scores[token * shape.experts + expert] =
            (by_weights[first + k] - mean) / total * slope_at(softsign(own[expert]));
    }
}

// by_outputs[token][o]: derivatives by what the experts gave, out of the deltas of a dense layer
// with `outputs` columns behind them.
extern "C" __global__ void moe_output_gradients(const float* parameters, const float* deltas,
                                                float* by_outputs, Shape shape, u32 outputs) {
    const u32 index = own_index();
    if (index >= shape.rows * shape.hidden) {
        return;
    }
    const u32 token = index / shape.hidden;
    const u32 input = index % shape.hidden;
    float sum = 0;
    for (u32 o = 0; o < outputs; o++) {
        sum += deltas[token * outputs + o] * parameters[input * outputs + o];
    }
    by_outputs[index] = sum;
}

// The derivatives by what stands before the activations of the layer before: those that came back
// from the experts, and the router's.
extern "C" __global__ void moe_input_deltas(const float* tokens, const float* by_tokens,
                                            const float* router, const float* by_scores,
                                            float* deltas, Shape shape) {
    const u32 index = own_index();
    if (index >= shape.rows * shape.hidden) {
        return;
    }
    const u32 token = index / shape.hidden;
    const u32 input = index % shape.hidden;
    float sum = by_tokens[index];
    for (u32 expert = 0; expert < shape.experts; expert++) {
        sum += by_scores[token * shape.experts + expert] * router[input * shape.experts + expert];
    }
    deltas[index] = sum * slope_at(tokens[index]);
}

// A step of gradient descent. Each GPU's gradients are a part; parts are added in their order.
extern "C" __global__ void moe_descend(float* parameters, const float* gradients, u32 count,
                                       u32 parts, float rate) {
    const u32 index = own_index();
    if (index < count) {
        float sum = 0;
        for (u32 part = 0; part < parts; part++) {
            sum += gradients[part * count + index];
        }
        parameters[index] -= rate * sum;
    }
}
