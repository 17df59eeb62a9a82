/* Python bindings of whole decoder passes. */
#include "bindings.h"

#include <stdlib.h>

static void decoder_free(PyObject *capsule) {
    sb_decoder *d = PyCapsule_GetPointer(capsule, SB_DECODER_CAPSULE);
    if (!d) return;
    free(d->layers);
    free(d);
}

static int read_layer(PyObject *item, sb_layer *layer) {
    return PyArg_ParseTuple(item, SB_MATRIX_FORMAT SB_MATRIX_FORMAT SB_MATRIX_FORMAT SB_MATRIX_FORMAT "(KKKK)L",
                            SB_MATRIX_FIELDS(&layer->qkv), SB_MATRIX_FIELDS(&layer->output),
                            SB_MATRIX_FIELDS(&layer->gate_up), SB_MATRIX_FIELDS(&layer->down), &layer->input_norm,
                            &layer->mlp_norm, &layer->q_norm, &layer->k_norm, &layer->capture);
}

/* Takes the tuple `layers`.  Returns 0 with an exception set when it cannot be read. */
static int read_layers(PyObject *layers, sb_decoder *d) {
    d->num_layers = PyTuple_Size(layers);
    if (d->num_layers < 0) return 0;
    d->layers = calloc((size_t)d->num_layers + 1, sizeof(sb_layer));
    if (!d->layers) {
        PyErr_NoMemory();
        return 0;
    }
    for (int64_t i = 0; i < d->num_layers; i++) {
        PyObject *item = PyTuple_GetItem(layers, (Py_ssize_t)i); /* borrowed */
        if (!item || !read_layer(item, &d->layers[i])) return 0;
    }
    return 1;
}

static PyObject *decoder_new(PyObject *self, PyObject *args) {
    (void)self;
    sb_decoder *d = calloc(1, sizeof(*d));
    if (!d) return PyErr_NoMemory();
    PyObject *layers, *capsule = NULL;
    if (PyArg_ParseTuple(args, "O" SB_MATRIX_FORMAT SB_MATRIX_FORMAT "(KK)(LLLLLLL)f", &layers,
                         SB_MATRIX_FIELDS(&d->embedding), SB_MATRIX_FIELDS(&d->head), &d->final_norm, &d->rotary,
                         &d->hidden, &d->inner, &d->num_heads, &d->kv_heads, &d->head_dim, &d->positions,
                         &d->final_capture, &d->eps) &&
        read_layers(layers, d))
        capsule = PyCapsule_New(d, SB_DECODER_CAPSULE, decoder_free);
    if (!capsule) {
        free(d->layers);
        free(d);
    }
    return capsule;
}

typedef struct {
    const sb_kernels *kernels;
    sb_pass pass;
} pass_job;

static void pass_task(void *arg, sb_pool *pool, int worker) {
    pass_job *job = arg;
    job->kernels->decoder(&job->pass, pool, worker);
}

static sb_memory pass_memory(const sb_kernels *kernels, const sb_pass *pass) {
    const sb_decoder *d = pass->decoder;
    int64_t mixed = d->num_heads * d->head_dim, widest = d->hidden > d->inner ? d->hidden : d->inner;
    size_t layers = kernels->linear_scratch(mixed > widest ? mixed : widest);
    size_t attention = kernels->attention_scratch(&pass->plan->shape);
    return (sb_memory){
        .shared = (size_t)sb_layout_pass(pass).total * sizeof(float),
        .per_worker = layers > attention ? layers : attention,
    };
}

static const char *run_pass(const sb_handle *h, pass_job *job, const sb_attention_shape *shape) {
    sb_attention_plan plan;
    const char *problem = sb_attention_prepare(&plan, shape, sb_pool_workers(h->pool));
    job->pass.plan = &plan;
    if (!problem) problem = sb_check_pass(&job->pass);
    if (!problem && sb_pool_run(h->pool, pass_memory(h->kernels, &job->pass), pass_task, job)) problem = "out of memory";
    sb_attention_release(&plan);
    return problem;
}

static PyObject *decoder_pass(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *pool, *decoder;
    pass_job job = {0};
    sb_pass *p = &job.pass;
    sb_attention_shape s = {0};
    if (!PyArg_ParseTuple(args, "OO(KKKKLL)(KKKKK)(LLLLL)(KK)(KK)", &pool, &decoder, &p->tokens, &p->positions,
                          &p->slots, &p->wanted, &p->num_tokens, &p->num_wanted, &s.page_table, &s.token_row,
                          &s.context_len, &s.extra_offsets, &s.extra_positions, &s.rows, &s.max_pages, &s.page_size,
                          &s.slots, &s.extras, &p->k_cache, &p->v_cache, &p->logits, &p->captured))
        return NULL;
    const sb_handle *h = PyCapsule_GetPointer(pool, SB_POOL_CAPSULE);
    const sb_decoder *d = h ? PyCapsule_GetPointer(decoder, SB_DECODER_CAPSULE) : NULL;
    if (!d) return NULL;
    job.kernels = h->kernels;
    p->decoder = d;
    s.tokens = p->num_tokens, s.heads = d->num_heads, s.kv_heads = d->kv_heads, s.head_dim = d->head_dim;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = run_pass(h, &job, &s);
    Py_END_ALLOW_THREADS
    if (problem) return PyErr_Format(PyExc_ValueError, "decoder pass: %s", problem);
    Py_RETURN_NONE;
}

PyMethodDef sb_decoder_methods[] = {
    {"decoder_new", decoder_new, METH_VARARGS, NULL},
    {"decoder_pass", decoder_pass, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
