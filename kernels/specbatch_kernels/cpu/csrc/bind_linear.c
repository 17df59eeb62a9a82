/* Python bindings of packing, linear layers and the small parts between them. */
#include "bindings.h"

static PyObject *packed_bytes(PyObject *self, PyObject *args) {
    (void)self;
    int type;
    long long tiles, cols;
    if (!PyArg_ParseTuple(args, "iLL", &type, &tiles, &cols)) return NULL;
    return PyLong_FromLongLong(tiles * sb_tile_bytes((sb_type)type, cols));
}

/* Packs a list of matrices in one go: another thread does not wait for the GIL between them. */
static PyObject *pack(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list)) return NULL;
    Py_ssize_t count = PyList_Size(list);
    sb_packing *jobs = PyMem_Calloc((size_t)(count ? count : 1), sizeof *jobs);
    if (!jobs) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        sb_packing *p = jobs + i;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "KiKLL", &p->packed, &p->type, &p->rows, &p->tiles, &p->cols)) {
            PyMem_Free(jobs);
            return NULL;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) sb_pack(jobs + i);
    Py_END_ALLOW_THREADS
    PyMem_Free(jobs);
    Py_RETURN_NONE;
}

/* One of the jobs below, and the kernels to run it with. */
typedef struct {
    const sb_kernels *kernels;
    union {
        sb_linear linear;
        sb_norm norm;
        sb_rotary rotary;
        sb_lookup lookup;
        sb_argmax argmax;
    };
} layer_job;

static int find_pool(PyObject *capsule, const sb_handle **handle, layer_job *job) {
    *handle = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    if (*handle) job->kernels = (*handle)->kernels;
    return *handle != NULL;
}

static void linear_task(void *arg, sb_pool *pool, int worker) {
    const layer_job *job = arg;
    sb_linear mine = job->linear;
    mine.packed = sb_pool_shared(pool);
    job->kernels->linear(&mine, pool, worker);
}

static PyObject *linear(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    const sb_handle *h;
    layer_job job = {0};
    sb_linear *l = &job.linear;
    if (!PyArg_ParseTuple(args, "O" SB_MATRIX_FORMAT "KKLi(Kf)", &capsule, SB_MATRIX_FIELDS(&l->matrix), &l->x,
                          &l->out, &l->tokens, &l->epilogue, &l->norm, &l->eps))
        return NULL;
    if (!find_pool(capsule, &h, &job)) return NULL;
    sb_memory memory = {
        .shared = (size_t)(l->tokens * l->matrix.cols) * sizeof(float),
        .per_worker = h->kernels->linear_scratch(l->matrix.cols),
    };
    return sb_run_task(h, memory, linear_task, &job);
}

static void norm_task(void *arg, sb_pool *pool, int worker) {
    (void)worker;
    const layer_job *job = arg;
    job->kernels->rms_norm(&job->norm, pool);
}

static PyObject *rms_norm(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    const sb_handle *h;
    layer_job job = {0};
    sb_norm *n = &job.norm;
    if (!PyArg_ParseTuple(args, "OKKKLLf", &capsule, &n->x, &n->weight, &n->out, &n->tokens, &n->width, &n->eps))
        return NULL;
    return find_pool(capsule, &h, &job) ? sb_run_task(h, (sb_memory){0}, norm_task, &job) : NULL;
}

static void rotary_task(void *arg, sb_pool *pool, int worker) {
    (void)worker;
    const layer_job *job = arg;
    job->kernels->rotate_and_store(&job->rotary, pool);
}

static PyObject *rotate_and_store(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    const sb_handle *h;
    layer_job job = {0};
    sb_rotary *r = &job.rotary;
    if (!PyArg_ParseTuple(args, "O(KKKK)(KKf)(KK)(LLLL)", &capsule, &r->heads, &r->rotary, &r->positions, &r->slots,
                          &r->q_norm, &r->k_norm, &r->eps, &r->k_cache, &r->v_cache, &r->tokens, &r->num_heads,
                          &r->kv_heads, &r->head_dim))
        return NULL;
    return find_pool(capsule, &h, &job) ? sb_run_task(h, (sb_memory){0}, rotary_task, &job) : NULL;
}

static void lookup_task(void *arg, sb_pool *pool, int worker) {
    (void)worker;
    const layer_job *job = arg;
    job->kernels->lookup(&job->lookup, pool);
}

static PyObject *lookup(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    const sb_handle *h;
    layer_job job = {0};
    sb_lookup *l = &job.lookup;
    if (!PyArg_ParseTuple(args, "O" SB_MATRIX_FORMAT "KKL", &capsule, SB_MATRIX_FIELDS(&l->matrix), &l->index, &l->out,
                          &l->tokens))
        return NULL;
    for (int64_t t = 0; t < l->tokens; t++)
        if (l->index[t] < 0 || l->index[t] >= l->matrix.rows)
            return PyErr_Format(PyExc_ValueError, "index: the matrix has no row %lld", (long long)l->index[t]);
    return find_pool(capsule, &h, &job) ? sb_run_task(h, (sb_memory){0}, lookup_task, &job) : NULL;
}

static void argmax_task(void *arg, sb_pool *pool, int worker) {
    (void)worker;
    const layer_job *job = arg;
    job->kernels->argmax(&job->argmax, pool);
}

static PyObject *argmax(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    const sb_handle *h;
    layer_job job = {0};
    sb_argmax *a = &job.argmax;
    if (!PyArg_ParseTuple(args, "OKKLL", &capsule, &a->x, &a->out, &a->tokens, &a->width)) return NULL;
    return find_pool(capsule, &h, &job) ? sb_run_task(h, (sb_memory){0}, argmax_task, &job) : NULL;
}

PyMethodDef sb_linear_methods[] = {
    {"packed_bytes", packed_bytes, METH_VARARGS, NULL},
    {"pack", pack, METH_VARARGS, NULL},
    {"linear", linear, METH_VARARGS, NULL},
    {"rms_norm", rms_norm, METH_VARARGS, NULL},
    {"rotate_and_store", rotate_and_store, METH_VARARGS, NULL},
    {"lookup", lookup, METH_VARARGS, NULL},
    {"argmax", argmax, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
