/* Python bindings.  Tensors arrive as addresses: the Python wrappers own every check of type, shape
 * and layout, this file owns argument parsing, the GIL and errors. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define CAPSULE "specbatch_kernels.cpu.pool"

typedef struct {
    sb_pool *pool;
    const sb_kernels *kernels;
} handle;

static int has_avx2(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

static const sb_kernels *find_kernels(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) return has_avx2() ? &sb_kernels_avx2 : NULL;
#endif
    return strcmp(name, "portable") ? NULL : &sb_kernels_portable;
}

static void handle_free(PyObject *capsule) {
    handle *h = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!h) return;
    if (h->pool) sb_pool_free(h->pool);
    free(h);
}

static handle *handle_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

static PyObject *best_isa(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    return PyUnicode_FromString(has_avx2() ? "avx2" : "portable");
}

static int read_cores(PyObject *cores, int *into, int count) {
    for (int i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(cores, i);
        if (!item) return 0;
        into[i] = (int)PyLong_AsLong(item);
        Py_DECREF(item);
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

static PyObject *wrap_pool(sb_pool *pool, const sb_kernels *kernels) {
    handle *h = malloc(sizeof(*h));
    if (!pool || !h) {
        if (pool) sb_pool_free(pool);
        free(h);
        PyErr_SetString(PyExc_RuntimeError, "the worker threads could not be started");
        return NULL;
    }
    *h = (handle){pool, kernels};
    PyObject *capsule = PyCapsule_New(h, CAPSULE, handle_free);
    if (!capsule) {
        sb_pool_free(pool);
        free(h);
    }
    return capsule;
}

static PyObject *pool_new(PyObject *self, PyObject *args) {
    (void)self;
    int workers, spin_us, list[1024];
    PyObject *cores;
    const char *isa;
    if (!PyArg_ParseTuple(args, "iOis", &workers, &cores, &spin_us, &isa)) return NULL;
    const sb_kernels *kernels = find_kernels(isa);
    if (!kernels) return PyErr_Format(PyExc_ValueError, "this processor has no instruction set '%s'", isa);
    if (workers < 1 || workers > 1024) return PyErr_Format(PyExc_ValueError, "workers must be 1 to 1024");
    if (cores != Py_None && !read_cores(cores, list, workers)) return NULL;
    sb_pool *pool;
    Py_BEGIN_ALLOW_THREADS
    pool = sb_pool_new(workers, cores == Py_None ? NULL : list, spin_us);
    Py_END_ALLOW_THREADS
    return wrap_pool(pool, kernels);
}

typedef struct {
    const sb_kernels *kernels;
    sb_attention_plan plan;
    sb_attention_data data;
} attention_job;

static void attention_task(void *arg, sb_pool *pool, int worker) {
    attention_job *job = arg;
    job->kernels->attention(&job->plan, &job->data, pool, worker);
}

static const char *run_attention(handle *h, attention_job *job, const sb_attention_shape *shape) {
    job->kernels = h->kernels;
    const char *problem = sb_attention_prepare(&job->plan, shape, sb_pool_workers(h->pool));
    if (!problem && sb_pool_run(h->pool, h->kernels->attention_memory(&job->plan), attention_task, job))
        problem = "out of memory";
    sb_attention_release(&job->plan);
    return problem;
}

static PyObject *attention(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    attention_job job;
    sb_attention_shape s;
    sb_attention_data *d = &job.data;
    if (!PyArg_ParseTuple(args, "O(KKKKf)(KKKKK)(LLLL)(LLLLL)", &capsule, &d->q, &d->k_cache, &d->v_cache, &d->out,
                          &d->scale, &s.page_table, &s.token_row, &s.context_len, &s.extra_offsets,
                          &s.extra_positions, &s.tokens, &s.heads, &s.kv_heads, &s.head_dim, &s.rows, &s.max_pages,
                          &s.page_size, &s.slots, &s.extras))
        return NULL;
    handle *h = handle_of(capsule);
    if (!h) return NULL;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = run_attention(h, &job, &s);
    Py_END_ALLOW_THREADS
    if (problem) return PyErr_Format(PyExc_ValueError, "paged attention: %s", problem);
    Py_RETURN_NONE;
}

static PyObject *packed_bytes(PyObject *self, PyObject *args) {
    (void)self;
    int type;
    long long tiles, cols;
    if (!PyArg_ParseTuple(args, "iLL", &type, &tiles, &cols)) return NULL;
    return PyLong_FromLongLong(tiles * sb_tile_bytes((sb_type)type, cols));
}

static PyObject *pack(PyObject *self, PyObject *args) {
    (void)self;
    uint8_t *packed;
    int type;
    const uint8_t *source;
    const int32_t *row_map;
    long long tiles, cols;
    if (!PyArg_ParseTuple(args, "KiKKLL", &packed, &type, &source, &row_map, &tiles, &cols)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    sb_pack(packed, (sb_type)type, source, row_map, tiles, cols);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

typedef struct {
    const sb_kernels *kernels;
    sb_linear linear;
} linear_job;

static void linear_task(void *arg, sb_pool *pool, int worker) {
    linear_job *job = arg;
    job->kernels->linear(&job->linear, pool, worker);
}

static PyObject *linear(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    linear_job job;
    sb_linear *l = &job.linear;
    int type, epilogue;
    if (!PyArg_ParseTuple(args, "O(iKKLL)KKLi", &capsule, &type, &l->matrix.data, &l->matrix.bias, &l->matrix.rows,
                          &l->matrix.cols, &l->x, &l->out, &l->tokens, &epilogue))
        return NULL;
    l->matrix.type = (sb_type)type;
    l->epilogue = (sb_epilogue)epilogue;
    handle *h = handle_of(capsule);
    if (!h) return NULL;
    job.kernels = h->kernels;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = sb_pool_run(h->pool, h->kernels->linear_memory(l->tokens, l->matrix.cols), linear_task, &job);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Every worker repeats one of the two loops on its own part of the data. */
typedef struct {
    const sb_kernels *kernels;
    const float *data;
    int64_t count; /* floats, or iterations when there is no data */
    _Atomic float sink;
} probe_job;

static void probe_task(void *arg, sb_pool *pool, int worker) {
    probe_job *job = arg;
    if (!job->data) {
        job->sink = job->kernels->probe_fma(job->count);
        return;
    }
    int64_t part = job->count / sb_pool_workers(pool) / 64 * 64;
    job->sink = job->kernels->probe_read(job->data + worker * part, part);
}

static PyObject *probe(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    probe_job job = {0};
    if (!PyArg_ParseTuple(args, "OKL", &capsule, &job.data, &job.count)) return NULL;
    handle *h = handle_of(capsule);
    if (!h) return NULL;
    job.kernels = h->kernels;
    Py_BEGIN_ALLOW_THREADS
    sb_pool_run(h->pool, (sb_memory){0}, probe_task, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"best_isa", best_isa, METH_NOARGS, NULL},
    {"pool_new", pool_new, METH_VARARGS, NULL},
    {"attention", attention, METH_VARARGS, NULL},
    {"packed_bytes", packed_bytes, METH_VARARGS, NULL},
    {"pack", pack, METH_VARARGS, NULL},
    {"linear", linear, METH_VARARGS, NULL},
    {"probe", probe, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
