/* A whole pass through a draft head: one task for the pool, with barriers between its phases. */
#ifndef SB_DRAFT_KERNEL_H
#define SB_DRAFT_KERNEL_H

#include "attention_kernel.h"
#include "draft_select.h"
#include "linear_kernel.h"
#include "lookup_kernel.h"
#include "rotary_kernel.h"

/* One worker's view of a pass. */
typedef struct {
    const sb_draft *pass;
    const sb_head *head;
    sb_pool *pool;
    int worker;
    float *x, *pair, *features, *heads, *mixed, *inner, *packed, *normed, *logits; /* shared buffers */
    draft_choice choice;
} draft_worker;

static void draft_linear(const draft_worker *w, sb_linear layer) {
    layer.packed = w->packed;
    layer.eps = w->head->eps;
    linear(&layer, w->pool, w->worker);
    sb_pool_barrier(w->pool);
}

static void draft_norm(const draft_worker *w, float *out, const float *x, const float *weight) {
    rms_norm_row(out, x, weight, w->head->hidden, w->head->eps);
}

/* The right half of what queries, keys and values are made of, once x holds g. */
static void place_state(const draft_worker *w, int64_t t) {
    int64_t d = w->head->hidden;
    float *normed = w->pair + (2 * t + 1) * d, *x = w->x + t * d;
    draft_norm(w, normed, x, w->head->hidden_norm);
    if (w->head->norm_residual) memcpy(x, normed, (size_t)d * sizeof(float));
}

/* The left half; and where states are given, the right one too. */
static void place_embedding(const draft_worker *w, int64_t t) {
    const sb_draft *p = w->pass;
    int64_t d = w->head->hidden;
    float *embedding = w->pair + 2 * t * d;
    lookup_row(embedding, &w->head->embedding, p->tokens[t] < 0 ? 0 : p->tokens[t]);
    draft_norm(w, embedding, embedding, w->head->embed_norm);
    if (p->features) return;
    memcpy(w->x + t * d, p->states + p->state_index[t] * d, (size_t)d * sizeof(float));
    place_state(w, t);
}

/* x = g, pair = cat(norm(embedding), norm(g)). */
static void draft_inputs(const draft_worker *w) {
    const sb_draft *p = w->pass;
    const sb_head *h = w->head;
    int64_t d = h->hidden, tokens = p->num_tokens, total = tokens;
    if (p->features && h->feature_norms) total += tokens * h->features;
    for (int64_t i; (i = sb_pool_ticket(w->pool)) < total;) {
        int64_t feature = i - tokens;
        if (feature < 0)
            place_embedding(w, i);
        else
            draft_norm(w, w->features + feature * d, p->features + feature * d,
                       h->feature_norms + feature % h->features * d);
    }
    sb_pool_barrier(w->pool);
    if (!p->features) return;
    draft_linear(w, (sb_linear){
        .tokens = tokens, .matrix = h->fc, .x = h->feature_norms ? w->features : p->features,
        .norm = h->joint_norm, .out = w->x,
    });
    for (int64_t t; (t = sb_pool_ticket(w->pool)) < tokens;) place_state(w, t);
    sb_pool_barrier(w->pool);
}

static void draft_attention(const draft_worker *w) {
    const sb_draft *p = w->pass;
    const sb_head *h = w->head;
    sb_rotary job = {
        .heads = w->heads, .rotary = h->rotary, .positions = p->positions, .slots = p->slots,
        .k_cache = p->k_cache, .v_cache = p->v_cache, .tokens = p->num_tokens, .num_heads = h->num_heads,
        .kv_heads = h->kv_heads, .head_dim = h->head_dim, .eps = h->eps,
    };
    sb_attention_data data = {
        .q = w->heads, .q_stride = (h->num_heads + 2 * h->kv_heads) * h->head_dim, .k_cache = p->k_cache,
        .v_cache = p->v_cache, .out = w->mixed, .scale = 1.0f / sqrtf((float)h->head_dim),
    };
    rotate_and_store(&job, w->pool);
    sb_pool_barrier(w->pool);
    attention(p->plan, &data, w->pool, w->worker);
    sb_pool_barrier(w->pool);
}

static void draft_layer(const draft_worker *w) {
    const sb_head *h = w->head;
    int64_t tokens = w->pass->num_tokens;
    draft_linear(w, (sb_linear){.tokens = tokens, .matrix = h->qkv, .x = w->pair, .out = w->heads});
    draft_attention(w);
    draft_linear(w, (sb_linear){
        .tokens = tokens, .matrix = h->output, .x = w->mixed, .out = w->x, .epilogue = SB_ACCUMULATE,
    });
    draft_linear(w, (sb_linear){
        .tokens = tokens, .matrix = h->gate_up, .x = w->x, .norm = h->mlp_norm, .out = w->inner,
        .epilogue = SB_GATE,
    });
    draft_linear(w, (sb_linear){
        .tokens = tokens, .matrix = h->down, .x = w->inner, .out = w->x, .epilogue = SB_ACCUMULATE,
    });
}

/* Feedback and candidates of the wanted entries. */
static void draft_predict(const draft_worker *w) {
    const sb_draft *p = w->pass;
    int64_t d = w->head->hidden;
    for (int64_t i; (i = sb_pool_ticket(w->pool)) < p->num_wanted;) {
        const float *x = w->x + p->wanted[i] * d;
        draft_norm(w, w->normed + i * d, x, w->head->final_norm);
        memcpy(p->feedback + i * d, w->head->norm_output ? w->normed + i * d : x, (size_t)d * sizeof(float));
    }
    sb_pool_barrier(w->pool);
    draft_linear(w, (sb_linear){
        .tokens = p->num_wanted, .matrix = w->head->lm_head, .x = w->normed, .out = w->logits,
    });
    choose_candidates(&w->choice, w->pool);
}

static void draft_one(const sb_draft *pass, sb_pool *pool, int worker) {
    sb_draft_layout at = sb_layout_draft(pass);
    uint8_t *shared = sb_pool_shared(pool);
    float *logits = pass->logits ? pass->logits : (float *)(shared + at.logits);
    draft_worker w = {
        .pass = pass, .head = pass->head, .pool = pool, .worker = worker,
        .x = (float *)(shared + at.x), .pair = (float *)(shared + at.pair),
        .features = (float *)(shared + at.features), .heads = (float *)(shared + at.heads),
        .mixed = (float *)(shared + at.mixed), .inner = (float *)(shared + at.inner),
        .packed = (float *)(shared + at.packed), .normed = (float *)(shared + at.normed), .logits = logits,
        .choice = {
            .pass = pass, .logits = logits, .chunks = (sb_chunk *)(shared + at.chunks),
            .candidates = (sb_candidate *)(shared + at.candidates),
        },
    };
    draft_inputs(&w);
    draft_layer(&w);
    if (pass->num_wanted) draft_predict(&w);
}

/* Whether any path that the next pass continues is likely enough; all workers see the same. */
static int chains_go_on(const sb_draft *passes, int64_t next) {
    if (!passes[0].least) return 1;
    for (int64_t t = 0; t < passes[next].num_tokens; t++) {
        double path = 0.0;
        for (int64_t i = 0; i < next; i++) path += passes[i].log_probs[t];
        if (!(path < passes[0].least[t])) return 1;
    }
    return 0;
}

static void leave_out(const sb_draft *pass) {
    for (int64_t t = 0; t < pass->num_wanted; t++) {
        pass->ids[t] = SB_NOT_DRAFTED;
        pass->log_probs[t] = pass->scores[t] = -INFINITY;
    }
}

static void draft(const sb_draft *passes, int64_t count, sb_pool *pool, int worker) {
    draft_one(&passes[0], pool, worker);
    int64_t done = 1;
    for (; done < count; done++) {
        sb_pool_barrier(pool);
        if (!chains_go_on(passes, done)) break;
        draft_one(&passes[done], pool, worker);
    }
    for (; worker == 0 && done < count; done++) leave_out(&passes[done]);
}

#endif
