/* A whole pass through a decoder: one task for the pool, with barriers between its phases. */
#ifndef SB_DECODER_KERNEL_H
#define SB_DECODER_KERNEL_H

#include "attention_kernel.h"
#include "linear_kernel.h"
#include "lookup_kernel.h"
#include "rotary_kernel.h"

/* One worker's view of a pass. */
typedef struct {
    const sb_pass *pass;
    sb_pool *pool;
    int worker;
    float *x, *heads, *mixed, *inner, *packed; /* shared buffers */
} pass_worker;

static void run_linear(const pass_worker *w, sb_linear layer) {
    layer.packed = w->packed;
    layer.eps = w->pass->decoder->eps;
    linear(&layer, w->pool, w->worker);
    sb_pool_barrier(w->pool);
}

static void run_embedding(const pass_worker *w) {
    const sb_pass *p = w->pass;
    sb_lookup job = {.matrix = p->decoder->embedding, .index = p->tokens, .out = w->x, .tokens = p->num_tokens};
    lookup(&job, w->pool);
    sb_pool_barrier(w->pool);
}

/* Reports the states between two layers, where they were asked for: place -1 is nowhere. */
static void run_capture(const pass_worker *w, int64_t place) {
    const sb_pass *p = w->pass;
    if (w->worker != 0 || !p->captured || place < 0) return;
    size_t count = (size_t)(p->num_tokens * p->decoder->hidden);
    memcpy(p->captured + (size_t)place * count, w->x, count * sizeof(float));
}

/* Stores keys and values, and the layer's input where it was asked for: nobody changes it meanwhile. */
static void run_rotary(const pass_worker *w, const sb_layer *layer, int64_t cache) {
    const sb_pass *p = w->pass;
    const sb_decoder *d = p->decoder;
    sb_rotary job = {
        .heads = w->heads, .rotary = d->rotary, .positions = p->positions, .slots = p->slots,
        .q_norm = layer->q_norm, .k_norm = layer->k_norm, .k_cache = p->k_cache + cache, .v_cache = p->v_cache + cache,
        .tokens = p->num_tokens, .num_heads = d->num_heads, .kv_heads = d->kv_heads, .head_dim = d->head_dim,
        .eps = d->eps,
    };
    run_capture(w, layer->capture);
    rotate_and_store(&job, w->pool);
    sb_pool_barrier(w->pool);
}

static void run_attention(const pass_worker *w, int64_t cache) {
    const sb_pass *p = w->pass;
    const sb_decoder *d = p->decoder;
    sb_attention_data data = {
        .q = w->heads, .q_stride = (d->num_heads + 2 * d->kv_heads) * d->head_dim,
        .k_cache = p->k_cache + cache, .v_cache = p->v_cache + cache, .out = w->mixed,
        .scale = 1.0f / sqrtf((float)d->head_dim),
    };
    attention(p->plan, &data, w->pool, w->worker);
    sb_pool_barrier(w->pool);
}

static void run_layer(const pass_worker *w, int64_t number) {
    const sb_layer *layer = &w->pass->decoder->layers[number];
    const sb_attention_shape *s = &w->pass->plan->shape;
    int64_t cache = number * s->slots * s->kv_heads * s->head_dim;
    int64_t tokens = w->pass->num_tokens;
    run_linear(w, (sb_linear){
        .tokens = tokens, .matrix = layer->qkv, .x = w->x, .norm = layer->input_norm, .out = w->heads,
    });
    run_rotary(w, layer, cache);
    run_attention(w, cache);
    run_linear(w, (sb_linear){
        .tokens = tokens, .matrix = layer->output, .x = w->mixed, .out = w->x, .epilogue = SB_ACCUMULATE,
    });
    run_linear(w, (sb_linear){
        .tokens = tokens, .matrix = layer->gate_up, .x = w->x, .norm = layer->mlp_norm, .out = w->inner,
        .epilogue = SB_GATE,
    });
    run_linear(w, (sb_linear){
        .tokens = tokens, .matrix = layer->down, .x = w->inner, .out = w->x, .epilogue = SB_ACCUMULATE,
    });
}

static void decoder(const sb_pass *pass, sb_pool *pool, int worker) {
    sb_pass_layout at = sb_layout_pass(pass);
    float *shared = sb_pool_shared(pool);
    pass_worker w = {
        .pass = pass, .pool = pool, .worker = worker,
        .x = shared + at.x, .heads = shared + at.heads, .mixed = shared + at.mixed, .inner = shared + at.inner,
        .packed = shared + at.packed,
    };
    run_embedding(&w);
    for (int64_t i = 0; i < pass->decoder->num_layers; i++) run_layer(&w, i);
    run_capture(&w, pass->decoder->final_capture);
    run_linear(&w, (sb_linear){
        .tokens = pass->num_wanted, .matrix = pass->decoder->head, .x = w.x, .index = pass->wanted,
        .norm = pass->decoder->final_norm, .out = pass->logits,
    });
}

#endif
