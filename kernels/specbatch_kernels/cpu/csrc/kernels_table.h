/* The table of one instruction set: included once per set, after its target has been chosen. */
#include "decoder_kernel.h"
#include "draft_kernel.h"
#include "probe_kernel.h"
#include "sample_kernel.h"

const sb_kernels SB_TABLE = {
    .attention = attention,
    .linear = linear,
    .decoder = decoder,
    .draft = draft,
    .rms_norm = rms_norm,
    .rotate_and_store = rotate_and_store,
    .lookup = lookup,
    .argmax = argmax,
    .sample = sample,
    .attention_scratch = attention_scratch,
    .linear_scratch = linear_scratch,
    .sample_scratch = sample_scratch,
    .probe_read = probe_read,
    .probe_fma = probe_fma,
};
