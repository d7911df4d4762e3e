// SPDX-License-Identifier: Apache-2.0
/* An extension for CPython that keeps blocks of all three of its allocators' domains, each kind in a function of its own. */
#include <Python.h>

#define KEEP __attribute__((noinline)) static void

static PyObject *kept;

KEEP without_decref(void)
{
	PyBytes_FromStringAndSize(NULL, 67); /* 33 bytes more, of PyMem's object domain: in an arena */
}

KEEP large(void)
{
	PyBytes_FromStringAndSize(NULL, 1967); /* of the same domain, which gets it from malloc */
}

KEEP raw(void)
{
	*(volatile char *)PyMem_RawMalloc(1009) = 1;
}

KEEP resized(void)
{
	*(volatile char *)PyMem_Realloc(PyMem_Malloc(77), 177) = 1;
}

KEEP in_dict(long number)
{
	PyObject *key = PyLong_FromLong(number), *value = PyBytes_FromStringAndSize(NULL, 167);

	PyDict_SetItem(kept, key, value);
	Py_DECREF(key);
	Py_DECREF(value);
}

KEEP given_back(void)
{
	Py_DECREF(PyBytes_FromStringAndSize(NULL, 267));
	PyMem_Free(PyMem_Calloc(3, 20));
	PyMem_Free(PyMem_Calloc(3, 2000));
}

static PyObject *run(PyObject *self, PyObject *rounds)
{
	(void)self;
	for (long i = PyLong_AsLong(rounds); i > 0; i--) {
		without_decref();
		large();
		raw();
		resized();
		in_dict(PyDict_Size(kept));
		given_back();
	}
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = { { "run", run, METH_O, "" }, { NULL, NULL, 0, NULL } };
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "python_extension", "", -1, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit_python_extension(void)
{
	kept = PyDict_New();
	return PyModule_Create(&module);
}
