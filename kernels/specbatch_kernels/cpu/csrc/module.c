/* The Python module: collects the functions of the binding files. */
#include "bindings.h"

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyMethodDef *methods[] = {sb_pool_methods, sb_attention_methods, sb_linear_methods, sb_decoder_methods,
                              sb_draft_methods, sb_sample_methods, NULL};
    PyObject *module = PyModule_Create(&definition);
    for (int i = 0; module && methods[i]; i++) {
        if (PyModule_AddFunctions(module, methods[i])) {
            Py_DECREF(module);
            return NULL;
        }
    }
    return module;
}
