/* A one-layer draft head on features of a target (EAGLE-3, Li et al. 2025; 3.1 adds norms) and one
 * pass through it.
 *
 * Entry t stands for token tokens[t].  Its state g comes from the target's features at the token
 * before (g = fc(features)) or from an earlier entry (g = its feedback).  The layer reads
 * cat(norm(embedding), norm(g)), adds attention and MLP to g, and predicts the token after tokens[t].
 */
#ifndef SB_DRAFT_H
#define SB_DRAFT_H

#include "attention.h"
#include "layers.h"
#include "linear.h"

typedef struct {
    sb_matrix embedding, fc, qkv, output, gate_up, down, lm_head;
    const float *feature_norms; /* [features, hidden] a norm for each feature, or NULL */
    const float *joint_norm;    /* [features * hidden] one for all of them, or NULL */
    const float *embed_norm, *hidden_norm, *mlp_norm, *final_norm; /* [hidden] */
    const float *rotary;        /* [positions, 2, head_dim / 2] */
    const int64_t *target_ids;  /* [draft vocabulary] */
    int64_t features, hidden, inner, num_heads, kv_heads, head_dim, positions;
    int norm_output;   /* feedback is the normed state */
    int norm_residual; /* the residual starts from norm(g) */
    float eps;
} sb_head;

typedef struct {
    const sb_head *head;
    const sb_attention_plan *plan;
    const int64_t *tokens, *positions, *slots; /* [tokens] */
    const int64_t *wanted;                     /* [num_wanted] entries that predict */
    const float *features;                     /* [tokens, features * hidden], or NULL: states */
    const float *states;                       /* [num_states, hidden] */
    const int64_t *state_index;                /* [tokens] row of states */
    float *k_cache, *v_cache;                  /* [slots, kv_heads, head_dim] */
    const double *temperature;                 /* [num_wanted], 0: rank by probability at temperature 1 */
    const uint64_t *noise;                     /* [num_wanted] SplitMix64 states, as in sample.h */
    float *feedback;                           /* [num_wanted, hidden] */
    float *logits;                             /* [num_wanted, draft vocabulary], or NULL */
    int64_t *ids;                              /* [num_wanted, width] target tokens, best first, then -1 */
    double *log_probs;                         /* [num_wanted, width] */
    double *scores;                            /* [num_wanted, width] what they are ranked by */
    int64_t num_tokens, num_wanted, num_states, width;
    int chained; /* tokens are the candidates of the pass before: below 0 where it had none */
    const double *least; /* [num_wanted] of a chain's first pass, or NULL: chains whose paths are all less
                            likely than this (a log) go no deeper */
} sb_draft;

/* Stands for the candidate of an entry that was not computed. */
#define SB_NOT_DRAFTED (-2)

/* Draft tokens that one worker looks through at a time. */
#define SB_DRAFT_CHUNK 2048

/* One candidate, and what is known about a chunk besides its candidates. */
typedef struct {
    double score;
    int64_t index; /* draft token */
} sb_candidate;

typedef struct {
    double top; /* largest logit, NaN where any is not finite */
    double sum; /* of exp((logit - top) / temperature) */
    int64_t found, taken; /* candidates, and those that have been handed on */
} sb_chunk;

static inline int64_t sb_draft_chunks(const sb_head *head) {
    return (head->lm_head.rows + SB_DRAFT_CHUNK - 1) / SB_DRAFT_CHUNK;
}

/* Places of the buffers that the workers share, in bytes. */
typedef struct {
    int64_t x, pair, features, heads, mixed, inner, packed, normed, logits, chunks, candidates, total;
} sb_draft_layout;

sb_draft_layout sb_layout_draft(const sb_draft *draft);

/* Columns of the widest matrix. */
int64_t sb_draft_widest(const sb_head *head);

/* Checks what the attention plan does not know.  Returns NULL, or what is wrong. */
const char *sb_check_draft(const sb_draft *draft);

#endif
