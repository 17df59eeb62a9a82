/* The table of one instruction set: included once per set, after its target has been chosen. */
#include "attention_kernel.h"
#include "linear_kernel.h"
#include "probe_kernel.h"

const sb_kernels SB_TABLE = {
    .attention_memory = attention_memory,
    .attention = attention,
    .linear_memory = linear_memory,
    .linear = linear,
    .probe_read = probe_read,
    .probe_fma = probe_fma,
};
