/* A decoder of the Llama family and one pass through it. */
#ifndef SB_DECODER_H
#define SB_DECODER_H

#include "attention.h"
#include "layers.h"
#include "linear.h"

typedef struct {
    sb_matrix qkv, output, gate_up, down;
    const float *input_norm, *mlp_norm; /* [hidden] */
    const float *q_norm, *k_norm;       /* [head_dim], or NULL */
    int64_t capture;                    /* place of this layer's input in the captured states, or -1 */
} sb_layer;

typedef struct {
    sb_layer *layers;
    sb_matrix embedding, head; /* often the same */
    const float *final_norm;   /* [hidden] */
    const float *rotary;       /* [positions, 2, head_dim / 2] */
    int64_t num_layers, hidden, inner, num_heads, kv_heads, head_dim, positions;
    int64_t final_capture; /* place of the final norm's input in the captured states, or -1 */
    float eps;
} sb_decoder;

typedef struct {
    const sb_decoder *decoder;
    const sb_attention_plan *plan;
    const int64_t *tokens, *positions, *slots; /* [tokens] */
    const int64_t *wanted;                     /* [num_wanted] tokens whose logits are due */
    float *k_cache, *v_cache;                  /* [layers, slots, kv_heads, head_dim] */
    float *logits;                             /* [num_wanted, vocabulary] */
    float *captured;                           /* [captured layers, tokens, hidden], or NULL */
    int64_t num_tokens, num_wanted;
} sb_pass;

/* Places of the buffers that the workers share, in floats. */
typedef struct {
    int64_t x, heads, mixed, inner, packed, total;
} sb_pass_layout;

sb_pass_layout sb_layout_pass(const sb_pass *pass);

/* Checks the indices of a pass that the attention plan does not know.  Returns NULL, or what is wrong. */
const char *sb_check_pass(const sb_pass *pass);

#endif
