/* Exact minimum-cost assignment for a batch of problems, on one core. Rows are the shorter side;
 * the costs are read where they lie, by strides.
 *
 * A square: row and column reduction, and a greedy start on the zeros they leave. Fewer rows than
 * columns: each row starts with its cheapest column. There is no column reduction, because a column
 * that may stay free must have the potential 0. Then one shortest augmenting path (Dijkstra over
 * reduced costs) for every row that is still free. Row potentials are never stored: a matched row's
 * potential is its cost minus the column potential, and a constant added to a free row's costs
 * changes no path.
 *
 * Costs are float16, bfloat16, float32 or float64; the arithmetic is always float64, so the optimum
 * of a float32 problem is exact. Rows are padded to a multiple of LANES, so the inner loops are
 * whole vectors. There is no infinity and no NaN once a row is loaded, so it is compiled with
 * -ffinite-math-only and minima are vectorised. No threads.
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

/* How the costs of a type are read. */
typedef struct {
    int64_t size;
    int (*load)(const void *from, int64_t stride, const int64_t *row, int64_t rows,
                const int64_t *at, int64_t columns, int64_t width, double *to);
    int (*cheapest)(const void *from, int64_t n, int64_t stride, int64_t columns,
                    const int64_t *row, int64_t rows, int64_t *found, void *scratch);
} Kind;

typedef struct {
    const Kind *kind;
    const char *source;    /* the costs of the problem, where they lie */
    int64_t n_rows;        /* of the source, with those that take no part */
    int64_t row_stride;    /* of the source, as a number of costs */
    int64_t column_stride; /* the same */
    int64_t *row;          /* (rows): numbers, in the source, of those that take part */
    int64_t *column;       /* (columns): the same */
    int64_t *at;           /* (columns): where they lie in a row of the source */
    double *cost;          /* (rows, width): the loaded rows; out of reach behind their columns */
    int64_t *place;        /* (rows): where a row begins in cost, or -1 */
    int64_t n_loaded;      /* rows in cost */
    double *potential;     /* (width): of the columns */
    double *open;          /* (width): potential; out of reach once the path has scanned it */
    double *distance;      /* (width): from the free row; FAR once scanned */
    double *rank;          /* (width): the column, plus width once it is matched: free ones first */
    double *scanned_at;    /* (columns): distances of the scanned ones, in scanning order */
    int64_t *reached_from; /* (width): row before the column on the shortest path */
    int64_t *scanned;      /* (columns): scanned columns */
    int64_t *row_of;       /* (columns): row matched to a column, or -1 */
    int64_t *column_of;    /* (rows): column matched to a row, or -1 */
    void *scratch;         /* (4, n_rows or WIDE) of 8 bytes */
} Work;

/* The value of a cost from its bits. Exact, and no step is below the smallest normal number. */
static inline double of_half(int16_t bits) {
    const int32_t magnitude = bits & 0x7fff, subnormal = magnitude < 0x0400;
    union { int32_t bits; float value; } x = {(magnitude + 0x0400 * subnormal + 0x1c000) << 13};
    x.value -= (float)subnormal * 0x1p-14f;
    return bits < 0 ? -x.value : x.value;
}
static inline double of_single(int32_t bits) {
    union { int32_t bits; float value; } x = {bits};
    return x.value;
}
static inline double of_bfloat(int16_t bits) { return of_single((int32_t)bits * 0x10000); }
static inline double of_double(int64_t bits) {
    union { int64_t bits; double value; } x = {bits};
    return 0x1p-60 * x.value; /* keeps sums of the largest costs finite */
}

/* load: rows that take part; `at` is NULL if their columns lie side by side.
 *
 * cheapest: the cheapest column of each row that takes part, in one pass over the costs, where all
 * `n` rows of a column lie side by side. Vectors go along the rows; narrow columns that touch are
 * taken several at a time. The bits of costs compare as integers do, once those below 0 are turned
 * round. Of each minimum the pass keeps the block of columns, which is searched afterwards.
 *
 * Both return 0 if a cost is not finite: its exponent is all ones. */
enum { BLOCK = 32, WIDE = 64 };
#define DEFINE_KIND(NAME, BITS, MOST, INFINITE)                                                    \
    SIMD static int load_##NAME(const void *source, int64_t stride, const int64_t *row,            \
                                int64_t rows, const int64_t *at, int64_t columns, int64_t width,   \
                                double *restrict to) {                                             \
        BITS not_finite = 0;                                                                       \
        for (int64_t i = 0; i < rows; i++, to += width) {                                          \
            const BITS *restrict from = (const BITS *)source + row[i] * stride;                    \
            for (int64_t j = 0; !at && j < columns; j++) {                                         \
                not_finite |= (from[j] & INFINITE) == INFINITE;                                    \
                to[j] = of_##NAME(from[j]);                                                        \
            }                                                                                      \
            for (int64_t j = 0; at && j < columns; j++) {                                          \
                not_finite |= (from[at[j]] & INFINITE) == INFINITE;                                \
                to[j] = of_##NAME(from[at[j]]);                                                    \
            }                                                                                      \
            for (int64_t j = columns; j < width; j++) to[j] = 2 * FAR;                             \
        }                                                                                          \
        return !not_finite;                                                                        \
    }                                                                                              \
    static inline BITS key_##NAME(BITS bits) { return bits < 0 ? bits ^ MOST : bits; }             \
    SIMD static int cheapest_##NAME(const void *source, int64_t n, int64_t stride,                 \
                                    int64_t columns, const int64_t *row, int64_t rows,             \
                                    int64_t *found, void *scratch) {                               \
        const int64_t fit = stride == n && n < WIDE ? WIDE / n : 1;                                \
        const int64_t together = fit < columns ? fit : columns, size = together * n;               \
        const BITS *from = source;                                                                 \
        BITS *restrict best = scratch, *restrict least = best + size;                              \
        BITS *restrict most = least + size;                                                        \
        int32_t *restrict block = (int32_t *)((int64_t *)scratch + 3 * size);                      \
        for (int64_t i = 0; i < size; i++) least[i] = MOST, most[i] = -MOST - 1, block[i] = 0;     \
        for (int64_t j = 0, b = 0; j < columns; b++) {                                             \
            for (int64_t i = 0; i < size; i++) best[i] = MOST;                                     \
            for (int s = 0; s < BLOCK && j < columns; s++, j += together) {                        \
                const BITS *restrict here = from + j * stride;                                     \
                const int64_t left = (columns - j) * n, end = left < size ? left : size;           \
                for (int64_t i = 0; i < end; i++) {                                                \
                    const BITS key = key_##NAME(here[i]);                                          \
                    best[i] = key < best[i] ? key : best[i];                                       \
                    most[i] = key > most[i] ? key : most[i];                                       \
                }                                                                                  \
            }                                                                                      \
            for (int64_t i = 0; i < size; i++) {                                                   \
                block[i] = best[i] < least[i] ? (int32_t)b : block[i];                             \
                least[i] = best[i] < least[i] ? best[i] : least[i];                                \
            }                                                                                      \
        }                                                                                          \
        for (int64_t r = 0; r < rows; r++) {                                                       \
            int64_t first = row[r];                                                                \
            for (int64_t i = row[r]; i < size; i += n) {                                           \
                if (least[i] < -INFINITE || most[i] >= INFINITE) return 0;                         \
                if (least[i] < least[first]) first = i;                                            \
            }                                                                                      \
            int64_t j = (int64_t)block[first] * BLOCK * together;                                  \
            while (key_##NAME(from[j * stride + first]) != least[first]) j += together;            \
            found[r] = j + first / n;                                                              \
        }                                                                                          \
        return 1;                                                                                  \
    }
DEFINE_KIND(half, int16_t, INT16_MAX, 0x7c00)
DEFINE_KIND(bfloat, int16_t, INT16_MAX, 0x7f80)
DEFINE_KIND(single, int32_t, INT32_MAX, 0x7f800000)
DEFINE_KIND(double, int64_t, INT64_MAX, 0x7ff0000000000000)

static const Kind KINDS[] = {
    {sizeof(int16_t), load_half, cheapest_half},
    {sizeof(int16_t), load_bfloat, cheapest_bfloat},
    {sizeof(int32_t), load_single, cheapest_single},
    {sizeof(int64_t), load_double, cheapest_double},
};

/* Row i and those behind it. */
static int load(Work *w, int64_t i, int64_t rows, int64_t columns, int64_t width) {
    const int side_by_side = w->column_stride == 1 && w->column[columns - 1] == columns - 1;
    double *to = w->cost + w->n_loaded * width;
    for (int64_t r = i; r < i + rows; r++) w->place[r] = w->n_loaded++ * width;
    return w->kind->load(w->source, w->row_stride, w->row + i, rows, side_by_side ? NULL : w->at,
                         columns, width, to);
}

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
    const int64_t half = width / 2; /* two minima at a time: each waits for the one before */
    double lowest = FAR, other = FAR;
    for (int64_t j = 0; j < half; j++) {
        double here = values[j] == wanted ? rank[j] : FAR;
        double there = values[half + j] == wanted ? rank[half + j] : FAR;
        lowest = here < lowest ? here : lowest;
        other = there < other ? there : other;
    }
    lowest = other < lowest ? other : lowest;
    return (int64_t)(lowest < width ? lowest : lowest - width);
}

static inline void match(const Work *w, int64_t i, int64_t j, int64_t width) {
    w->row_of[j] = i;
    w->column_of[i] = j;
    w->rank[j] = j + width;
}

/* Potentials from row and column minima of a square, and the matches those minima suggest; with
 * fewer rows, the matches of the row minima. */
static inline void reduce_and_match(const Work *w, int64_t rows, int64_t columns, int64_t width) {
    double *restrict potential = w->potential;
    int64_t *restrict first_row = w->reached_from; /* of each column's minimum: free until later */
    for (int64_t j = 0; j < width; j++) potential[j] = FAR, first_row[j] = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double *restrict row = w->cost + w->place[i];
        double least = FAR;
        for (int64_t j = 0; j < width; j++) least = row[j] < least ? row[j] : least;
        if (rows == columns)
            for (int64_t j = 0; j < width; j++) {
                double reduced = row[j] - least;
                first_row[j] = reduced < potential[j] ? i : first_row[j];
                potential[j] = reduced < potential[j] ? reduced : potential[j];
            }
        int64_t j = find(row, least, width, w->rank);
        if (w->row_of[j] < 0) match(w, i, j, width);
    }
    for (int64_t j = rows < columns ? 0 : columns; j < width; j++) potential[j] = 0;
    if (rows == columns)
        for (int64_t j = 0; j < columns; j++)
            if (w->row_of[j] < 0 && w->column_of[first_row[j]] < 0)
                match(w, first_row[j], j, width);
}

/* Matches row `start` along a shortest augmenting path to a free column. */
static inline void augment(Work *w, int64_t start, int64_t columns, int64_t width) {
    int64_t n_scanned = 0, i = start, j = 0;
    double offset = 0, shortest = 0;
    for (int64_t k = 0; k < width; k++) w->distance[k] = FAR, w->reached_from[k] = start;
    for (;;) {
        if (w->place[i] < 0) load(w, i, 1, columns, width);
        const double *row = w->cost + w->place[i];
        if (n_scanned) offset = shortest - (row[j] - w->potential[j]);
        shortest = relax(row, i, offset, width, w->open, w->distance, w->reached_from);
        j = find(w->distance, shortest, width, w->rank);
        if (w->row_of[j] < 0) break;
        w->scanned[n_scanned] = j;
        w->scanned_at[n_scanned++] = shortest;
        w->distance[j] = FAR;
        w->open[j] = -2 * FAR;
        i = w->row_of[j];
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

/* Returns 0 if a cost is not finite. */
SIMD static int solve_one(Work *w, int64_t rows, int64_t columns) {
    const int64_t width = (columns + LANES - 1) / LANES * LANES;
    w->n_loaded = 0;
    for (int64_t i = 0; i < rows; i++) w->column_of[i] = w->place[i] = -1;
    for (int64_t j = 0; j < columns; j++) w->row_of[j] = -1;
    int64_t n_matched = 0;
    if (rows < columns && w->row_stride == 1) { /* a row is only loaded if a path needs it */
        int64_t *cheapest = w->scanned;
        if (!w->kind->cheapest(w->source, w->n_rows, w->column_stride, columns, w->row, rows,
                               cheapest, w->scratch))
            return 0;
        for (int64_t i = 0; i < rows; i++) {
            if (w->row_of[cheapest[i]] >= 0) continue;
            w->row_of[cheapest[i]] = i;
            w->column_of[i] = cheapest[i];
            n_matched++;
        }
        if (n_matched == rows) return 1;
        for (int64_t j = 0; j < width; j++) w->potential[j] = 0, w->rank[j] = j;
        for (int64_t i = 0; i < rows; i++)
            if (w->column_of[i] >= 0) w->rank[w->column_of[i]] += width;
    } else {
        if (!load(w, 0, rows, columns, width)) return 0;
        for (int64_t j = 0; j < width; j++) w->rank[j] = j;
        reduce_and_match(w, rows, columns, width);
    }
    for (int64_t j = 0; j < width; j++) w->open[j] = w->potential[j];
    for (int64_t i = 0; i < rows; i++)
        if (w->column_of[i] < 0) augment(w, i, columns, width);
    return 1;
}

/* Writes the numbers of those that take part; returns how many. */
static int64_t choose(const uint8_t *mask, int64_t n, int64_t *number) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (!mask || mask[i]) number[kept++] = i;
    return kept;
}

/* Returns how many problems hold a cost that is not finite; found[b][0] is -2 for those. If
 * swapped, the caller's columns are the rows here, and a mask removes rows alone. If not, a mask
 * of a square removes a row and the column of its number. */
static int64_t solve_batch(Work *w, const char *cost, int64_t batch_stride, const uint8_t *mask,
                           int64_t *found, int64_t batch, int64_t columns, int swapped) {
    const int64_t n_found = swapped ? columns : w->n_rows;
    int64_t n_bad = 0, rows = 0, kept = 0;
    for (int64_t b = 0; b < batch; b++, found += n_found) {
        if (!b || mask) {
            const uint8_t *here = mask ? mask + b * w->n_rows : NULL;
            rows = choose(here, w->n_rows, w->row);
            kept = choose(swapped ? NULL : here, columns, w->column);
            for (int64_t j = 0; j < kept; j++) w->at[j] = w->column[j] * w->column_stride;
        }
        for (int64_t i = 0; i < n_found; i++) found[i] = mask && !swapped ? i : -1;
        w->source = cost + b * batch_stride * w->kind->size;
        if (rows && !solve_one(w, rows, kept)) {
            found[0] = -2;
            n_bad++;
        } else {
            for (int64_t i = 0; i < rows; i++) {
                const int64_t row = w->row[i], column = w->column[w->column_of[i]];
                found[swapped ? column : row] = swapped ? row : column;
            }
        }
    }
    return n_bad;
}

/* solve(cost, kind, batch, rows, columns, and their strides, mask or 0, swapped, found): found is a
 * contiguous array for the longer side if swapped; the arrays are given by their addresses. */
static PyObject *solve(PyObject *self, PyObject *args) {
    unsigned long long cost, mask, found;
    Py_ssize_t batch, rows, columns, batch_stride, row_stride, column_stride;
    int kind, swapped;
    (void)self;
    if (!PyArg_ParseTuple(args, "KinnnnnnKpK", &cost, &kind, &batch, &rows, &columns,
                          &batch_stride, &row_stride, &column_stride, &mask, &swapped, &found))
        return NULL;
    const size_t n = columns, width = (n + LANES - 1) / LANES * LANES, line = 64;
    const size_t n_scratch = 4 * (size_t)(rows > WIDE ? rows : WIDE);
    const size_t n_words = (rows + 5) * width + 5 * n + 3 * rows + n_scratch; /* of 8 bytes */
    void *memory = malloc(n_words * sizeof(double) + line);
    if (!memory) return PyErr_NoMemory();
    Work w = {.kind = &KINDS[kind], .n_rows = rows, .row_stride = row_stride,
              .column_stride = column_stride};
    w.cost = (double *)(((uintptr_t)memory + line - 1) / line * line); /* whole cache lines */
    w.potential = w.cost + rows * width;
    w.open = w.potential + width;
    w.distance = w.open + width;
    w.rank = w.distance + width;
    w.reached_from = (int64_t *)(w.rank + width);
    w.scratch = w.reached_from + width;
    w.scanned_at = (double *)w.scratch + n_scratch;
    w.scanned = (int64_t *)(w.scanned_at + n);
    w.row_of = w.scanned + n;
    w.column = w.row_of + n;
    w.at = w.column + n;
    w.row = w.at + n;
    w.column_of = w.row + rows;
    w.place = w.column_of + rows;
    int64_t n_bad;
    Py_BEGIN_ALLOW_THREADS
    n_bad = solve_batch(&w, (const char *)(uintptr_t)cost, batch_stride,
                        (const uint8_t *)(uintptr_t)mask, (int64_t *)(uintptr_t)found, batch,
                        columns, swapped);
    Py_END_ALLOW_THREADS
    free(memory);
    return PyLong_FromLongLong(n_bad);
}

static PyMethodDef methods[] = {
    {"solve", solve, METH_VARARGS,
     "solve(cost, kind, batch, rows, columns, batch_stride, row_stride, column_stride, mask,"
     " swapped, found) -> bad problems"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_solver", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__solver(void) { return PyModule_Create(&module); }
