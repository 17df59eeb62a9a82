/* Shared by the binding files.  Tensors arrive as addresses: the Python wrappers own every check of
 * type, shape and layout, these files own argument parsing, the GIL and errors. */
#ifndef SB_BINDINGS_H
#define SB_BINDINGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

/* What a pool capsule holds. */
typedef struct {
    sb_pool *pool;
    const sb_kernels *kernels;
} sb_handle;

#define SB_POOL_CAPSULE "specbatch_kernels.cpu.pool"
#define SB_DECODER_CAPSULE "specbatch_kernels.cpu.decoder"
#define SB_HEAD_CAPSULE "specbatch_kernels.cpu.head"

/* A packed matrix as Python passes it: type, data, bias, rows, cols, int8. */
#define SB_MATRIX_FORMAT "(iKKLLp)"
#define SB_MATRIX_FIELDS(m) &(m)->type, &(m)->data, &(m)->bias, &(m)->rows, &(m)->cols, &(m)->int8
_Static_assert(sizeof(sb_type) == sizeof(int) && sizeof(void *) == sizeof(unsigned long long) &&
                   sizeof(int64_t) == sizeof(long long),
               "arguments are parsed straight into these types");

/* Runs a task on a pool without the GIL.  Returns None, or NULL with MemoryError set. */
PyObject *sb_run_task(const sb_handle *handle, sb_memory memory, sb_task task, void *job);

extern PyMethodDef sb_pool_methods[];
extern PyMethodDef sb_attention_methods[];
extern PyMethodDef sb_linear_methods[];
extern PyMethodDef sb_decoder_methods[];
extern PyMethodDef sb_draft_methods[];
extern PyMethodDef sb_sample_methods[];

#endif
