/* Exact minimum-cost assignment for a batch of problems with no more rows than columns, on one core.
 *
 * Each problem: row and column reduction, a greedy start on the zeros they leave, then one
 * shortest augmenting path (Dijkstra over reduced costs) for every row that is still free.
 * Costs are float32 or float64; the arithmetic is always float64, so the optimum of a float32
 * problem is exact. Row potentials are never stored: a matched row's potential is its cost minus
 * the column potential, and a constant added to a free row's costs changes no path. A column that
 * may stay free must have the potential 0: with fewer rows than columns there is no reduction.
 *
 * Rows are padded to a multiple of LANES, so the inner loops are whole vectors. There is no infinity
 * and no NaN once a problem is loaded, so it is compiled with -ffinite-math-only and minima are
 * vectorised. No threads.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { LANES = 8 };

/* Farther than any sum of costs; twice as far for columns that must never come nearer than that. */
#define FAR 0x1p1000

/* One binary, two instruction sets, chosen when it is loaded (AVX-512 was no faster than AVX2). */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define SIMD __attribute__((target_clones("arch=x86-64-v3", "default")))
#endif
#endif
#ifndef SIMD
#define SIMD
#endif

typedef struct {
    double *cost;          /* (rows, width): compact; those behind its columns are out of reach */
    double *potential;     /* (width): of the columns */
    double *open;          /* (width): potential; out of reach once the current path has scanned it */
    double *distance;      /* (width): from the free row; FAR once scanned */
    double *rank;          /* (width): the column, plus width once it is matched: free ones first */
    double *scanned_at;    /* (columns): distances of the scanned ones, in scanning order */
    int64_t *reached_from; /* (width): row before the column on the shortest path */
    int64_t *scanned;      /* (columns): scanned columns */
    int64_t *row_of;       /* (columns): row matched to a column, or -1 */
    int64_t *column_of;    /* (rows): column matched to a row, or -1 */
    int64_t *positions;    /* (columns): those of the problem that take part, and so do the rows */
} Work;

/* Distances through row i; returns the smallest among columns that are not scanned yet. */
static inline double relax(const double *restrict row, int64_t i, double offset, int64_t width,
                           const double *restrict open, double *restrict distance,
                           int64_t *restrict reached_from) {
    double nearest = FAR;
    for (int64_t j = 0; j < width; j++) {
        double through = row[j] - open[j] + offset, known = distance[j];
        reached_from[j] = through < known ? i : reached_from[j];
        distance[j] = through < known ? through : known;
        nearest = distance[j] < nearest ? distance[j] : nearest;
    }
    return nearest;
}

/* The column of the lowest rank among those whose value is the wanted one. */
static inline int64_t find(const double *restrict values, double wanted, int64_t width,
                           const double *restrict rank) {
    double lowest = FAR;
    for (int64_t j = 0; j < width; j++) {
        double here = values[j] == wanted ? rank[j] : FAR;
        lowest = here < lowest ? here : lowest;
    }
    return (int64_t)(lowest < width ? lowest : lowest - width);
}

static inline void match(const Work *w, int64_t i, int64_t j, int64_t width) {
    w->row_of[j] = i;
    w->column_of[i] = j;
    w->rank[j] = j + width;
}

/* Potentials from row and column minima, and the matches those minima suggest. */
static inline void reduce_and_match(const Work *w, int64_t rows, int64_t columns, int64_t width) {
    double *restrict potential = w->potential;
    int64_t *restrict first_row = w->reached_from; /* of each column's minimum: free until later */
    for (int64_t j = 0; j < width; j++) potential[j] = FAR, first_row[j] = 0;
    for (int64_t i = 0; i < rows; i++) w->column_of[i] = -1;
    for (int64_t j = 0; j < columns; j++) w->row_of[j] = -1;
    for (int64_t j = 0; j < width; j++) w->rank[j] = j;
    for (int64_t i = 0; i < rows; i++) {
        const double *restrict row = w->cost + i * width;
        double least = FAR;
        for (int64_t j = 0; j < width; j++) least = row[j] < least ? row[j] : least;
        for (int64_t j = 0; j < width; j++) {
            double reduced = row[j] - least;
            first_row[j] = reduced < potential[j] ? i : first_row[j];
            potential[j] = reduced < potential[j] ? reduced : potential[j];
        }
        int64_t j = find(row, least, width, w->rank);
        if (w->row_of[j] < 0) match(w, i, j, width);
    }
    for (int64_t j = rows < columns ? 0 : columns; j < width; j++) potential[j] = 0;
    for (int64_t j = 0; rows == columns && j < columns; j++)
        if (w->row_of[j] < 0 && w->column_of[first_row[j]] < 0)
            match(w, first_row[j], j, width);
}

/* Matches row `start` along a shortest augmenting path to a free column. */
static inline void augment(const Work *w, int64_t start, int64_t width) {
    int64_t n_scanned = 0, i = start, j;
    double offset = 0, shortest;
    for (j = 0; j < width; j++) w->distance[j] = FAR, w->reached_from[j] = start;
    for (;;) {
        shortest = relax(w->cost + i * width, i, offset, width, w->open, w->distance,
                         w->reached_from);
        j = find(w->distance, shortest, width, w->rank);
        if (w->row_of[j] < 0) break;
        w->scanned[n_scanned] = j;
        w->scanned_at[n_scanned++] = shortest;
        w->distance[j] = FAR;
        w->open[j] = -2 * FAR;
        i = w->row_of[j];
        offset = shortest - (w->cost[i * width + j] - w->potential[j]);
    }
    for (int64_t s = 0; s < n_scanned; s++) {
        int64_t column = w->scanned[s];
        w->potential[column] -= shortest - w->scanned_at[s];
        w->open[column] = w->potential[column];
    }
    w->rank[j] += width;
    do {
        i = w->reached_from[j];
        w->row_of[j] = i;
        int64_t previous = w->column_of[i];
        w->column_of[i] = j;
        j = previous;
    } while (i != start);
}

SIMD static void solve_one(const Work *w, int64_t rows, int64_t columns, int64_t width) {
    reduce_and_match(w, rows, columns, width);
    for (int64_t j = 0; j < width; j++) w->open[j] = w->potential[j];
    for (int64_t i = 0; i < rows; i++)
        if (w->column_of[i] < 0) augment(w, i, width);
}

/* Copies the first `rows` of the positions that take part, with all of their columns, into w->cost;
 * returns 0 if a cost is not finite. SCALE is a power of two, so exact: it keeps sums of the largest
 * float64 costs finite. */
#define DEFINE_LOAD(NAME, TYPE, BITS, EXPONENT, SCALE)                                            \
    SIMD static int NAME(const Work *w, const TYPE *cost, int64_t stride, int64_t rows,           \
                         int64_t kept, int64_t width) {                                           \
        const int prefix = w->positions[kept - 1] == kept - 1;                                    \
        BITS not_finite = 0; /* an exponent of all ones */                                        \
        for (int64_t i = 0; i < rows; i++) {                                                      \
            const TYPE *restrict from = cost + w->positions[i] * stride;                          \
            double *restrict to = w->cost + i * width;                                            \
            for (int64_t j = 0; prefix && j < kept; j++) {                                        \
                union { TYPE value; BITS bits; } x = {from[j]};                                   \
                not_finite |= (x.bits & EXPONENT) == EXPONENT;                                    \
                to[j] = SCALE * (double)x.value;                                                  \
            }                                                                                     \
            for (int64_t j = 0; !prefix && j < kept; j++) {                                       \
                union { TYPE value; BITS bits; } x = {from[w->positions[j]]};                     \
                not_finite |= (x.bits & EXPONENT) == EXPONENT;                                    \
                to[j] = SCALE * (double)x.value;                                                  \
            }                                                                                     \
            for (int64_t j = kept; j < width; j++) to[j] = 2 * FAR;                               \
        }                                                                                         \
        return !not_finite;                                                                       \
    }
DEFINE_LOAD(load_float, float, uint32_t, 0x7f800000u, 1.0)
DEFINE_LOAD(load_double, double, uint64_t, 0x7ff0000000000000u, 0x1p-60)

/* Returns how many problems hold a cost that is not finite; column[b][0] is -1 for those. A mask,
 * of square problems alone, removes a row and the column of its number. */
static int64_t solve_batch(const Work *w, const void *cost, int is_double, const uint8_t *mask,
                           int64_t *column, int64_t batch, int64_t rows, int64_t columns) {
    int64_t n_bad = 0;
    for (int64_t b = 0; b < batch; b++, column += rows) {
        int64_t kept = 0;
        for (int64_t i = 0; i < rows; i++) column[i] = i;
        for (int64_t j = 0; j < columns; j++)
            if (!mask || mask[b * columns + j]) w->positions[kept++] = j;
        const int64_t left = mask ? kept : rows;
        if (left == 0) continue;
        const int64_t width = (kept + LANES - 1) / LANES * LANES, at = b * rows * columns;
        const int finite =
            is_double ? load_double(w, (const double *)cost + at, columns, left, kept, width)
                      : load_float(w, (const float *)cost + at, columns, left, kept, width);
        if (!finite) {
            column[0] = -1;
            n_bad++;
            continue;
        }
        solve_one(w, left, kept, width);
        for (int64_t i = 0; i < left; i++) column[w->positions[i]] = w->positions[w->column_of[i]];
    }
    return n_bad;
}

/* solve(cost, is_double, mask or 0, column, batch, rows, columns): addresses of contiguous arrays. */
static PyObject *solve(PyObject *self, PyObject *args) {
    unsigned long long cost, mask, column;
    Py_ssize_t batch, rows, n; /* n columns */
    int is_double;
    (void)self;
    if (!PyArg_ParseTuple(args, "KpKKnnn", &cost, &is_double, &mask, &column, &batch, &rows, &n))
        return NULL;
    const size_t width = ((size_t)n + LANES - 1) / LANES * LANES;
    const size_t n_doubles = ((size_t)rows + 4) * width + n;
    const size_t n_integers = width + 3 * (size_t)n + rows;
    const size_t line = 64; /* whole vectors in whole cache lines */
    void *memory = malloc(n_doubles * sizeof(double) + n_integers * sizeof(int64_t) + line);
    if (!memory) return PyErr_NoMemory();
    Work w;
    w.cost = (double *)(((uintptr_t)memory + line - 1) / line * line);
    w.potential = w.cost + rows * width;
    w.open = w.potential + width;
    w.distance = w.open + width;
    w.rank = w.distance + width;
    w.reached_from = (int64_t *)(w.rank + width);
    w.scanned_at = (double *)(w.reached_from + width);
    w.scanned = (int64_t *)(w.scanned_at + n);
    w.row_of = w.scanned + n;
    w.column_of = w.row_of + n;
    w.positions = w.column_of + rows;
    int64_t n_bad;
    Py_BEGIN_ALLOW_THREADS
    n_bad = solve_batch(&w, (const void *)(uintptr_t)cost, is_double,
                        (const uint8_t *)(uintptr_t)mask, (int64_t *)(uintptr_t)column, batch,
                        rows, n);
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLongLong(n_bad);
}

static PyMethodDef methods[] = {
    {"solve", solve, METH_VARARGS,
     "solve(cost, is_double, mask, column, batch, rows, columns) -> bad problems"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_solver", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__solver(void) { return PyModule_Create(&module); }
