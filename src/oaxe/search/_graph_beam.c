/* Beam search over what a graph says, of one sentence: the search of oaxe/search/graph_beam.py.
 *
 * A prefix ends at the vertices that say its last word, each with a share of its probability. These
 * are few: what they lead to is a sum of few rows of links, not a product of matrices. A step costs
 * beam * vertices * (vertices of a word + words of a vertex). Prefixes are nodes of a tree, by
 * which their words are found again.
 *
 * The compiler is told that no number is infinite: log(0) is never taken.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "_ngrams.h"

typedef struct { /* see Said in oaxe/search/graph_beam_cpu.py */
    const int32_t *words;
    const int64_t *first, *vertices;
    const float *probs, *links;
    int64_t n_words, n_vertices;
} Graph;

typedef struct {
    int64_t parent, word; /* word: its number in the graph */
} Node;

typedef struct {
    double score, total, fluency; /* total: log-probability; fluency: what a language model adds */
    int64_t node, origin, word;   /* of an extension: the prefix, by its rank, and the word */
    int64_t order;                /* in which they came */
} Prefix;

typedef struct { /* the best, of equal ones those that came first; a heap with the worst in front */
    Prefix *of;
    int64_t n, most, seen;
} Best;

typedef struct {
    Graph graph;
    NGrams ngrams;
    double length_penalty;
    int64_t n_steps, widest; /* widest: vertices that say the same word, at most */
    int32_t eos;
    Best now, asked, finished;
    Node *nodes;
    int64_t n_nodes, *contexts; /* (nodes, n_states) */
    double *shares;             /* (beam, widest): of a prefix, where its last word is said */
    double *reach;              /* (beam, vertices): where one more link leads */
    double *paths;              /* (2, widest) */
    int64_t *origins, *text;    /* (steps, widest), (steps,) */
} Search;

static int is_worse(const Prefix *a, const Prefix *b) {
    return a->score < b->score || (a->score == b->score && a->order > b->order);
}

static int best_first(const void *a, const void *b) { return is_worse(a, b) ? 1 : -1; }

/* Whether a score would be among the best. */
static int is_enough(const Best *best, double score) {
    return best->n < best->most || score > best->of[0].score;
}

static void keep(Best *best, Prefix new) {
    if (!is_enough(best, new.score)) return;
    Prefix *heap = best->of;
    int64_t at;
    new.order = best->seen++;
    if (best->n < best->most) { /* up from the end */
        for (at = best->n++; at > 0 && is_worse(&new, &heap[(at - 1) / 2]); at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
    } else { /* down from the front, in place of the worst */
        int64_t below = 1;
        for (at = 0; below < best->n; at = below, below = 2 * at + 1) {
            if (below + 1 < best->n && is_worse(&heap[below + 1], &heap[below])) below++;
            if (!is_worse(&heap[below], &new)) break;
            heap[at] = heap[below];
        }
    }
    heap[at] = new;
}

static void sort(Best *best) { qsort(best->of, best->n, sizeof *best->of, best_first); }

static void clear(Best *best) { best->n = best->seen = 0; }

/* Where one more link leads from the vertices of a prefix. */
static void follow_links(const Search *s, int64_t i) {
    const Graph *g = &s->graph;
    const int64_t n = g->n_vertices, word = s->now.of[i].word;
    double *reach = s->reach + i * n;
    for (int64_t v = 0; v < n; v++) reach[v] = word == NONE ? g->links[v] : 0.0;
    if (word == NONE) return;
    const double *share = s->shares + i * s->widest - g->first[word];
    for (int64_t k = g->first[word]; k < g->first[word + 1]; k++) {
        if (!(share[k] > 0.0)) continue;
        const float *links = g->links + g->vertices[k] * n;
        for (int64_t v = g->vertices[k] + 1; v < n; v++) reach[v] += share[k] * links[v];
    }
}

/* The prefixes that end now, with so many words and EOS, and the best of before. */
static void finish(Search *s, int64_t length) {
    const double norm = pow((double)length, s->length_penalty);
    for (int64_t i = 0; i < s->now.n; i++) {
        Prefix p = s->now.of[i];
        const double end = s->reach[(i + 1) * s->graph.n_vertices - 1];
        if (!(end > 0.0)) continue;
        p.total += log(end);
        p.fluency += fluency(&s->ngrams, s->contexts + p.node * s->ngrams.n_states, s->eos, NULL);
        p.score = (p.total + p.fluency) / norm;
        keep(&s->finished, p);
    }
}

/* The best prefixes of one more word. */
static void extend(Search *s) {
    const Graph *g = &s->graph;
    const int64_t n_states = s->ngrams.n_states;
    clear(&s->asked);
    for (int64_t i = 0; i < s->now.n; i++) {
        const double *reach = s->reach + i * g->n_vertices;
        Prefix p = s->now.of[i];
        const double before = p.total, base = before + p.fluency;
        double least = 0.0; /* the probability that is enough: few logarithms are taken */
        p.origin = i;
        for (p.word = 0; p.word < g->n_words; p.word++) {
            double prob = 0.0;
            for (int64_t k = g->first[p.word]; k < g->first[p.word + 1]; k++)
                prob += reach[g->vertices[k]] * g->probs[k];
            if (!(prob > least)) continue;
            p.total = before + log(prob);
            p.score = p.total + p.fluency;
            keep(&s->asked, p);
            if (s->asked.n == s->asked.most) least = exp(fmin(s->asked.of[0].score - base, 1.0));
        }
    }
    sort(&s->asked);
    clear(&s->now);
    for (int64_t i = 0; i < s->asked.n; i++) {
        Prefix p = s->asked.of[i];
        if (s->ngrams.n_orders) {
            if (s->ngrams.weight >= 0 && !is_enough(&s->now, p.score)) break; /* nor are others */
            const int64_t *context = s->contexts + p.node * n_states;
            const double added = fluency(&s->ngrams, context, g->words[p.word], NULL);
            p.fluency += added;
            p.score += added;
        }
        keep(&s->now, p);
    }
    sort(&s->now);
    for (int64_t i = 0; i < s->now.n; i++) {
        Prefix *p = &s->now.of[i];
        const double *reach = s->reach + p->origin * g->n_vertices;
        double *share = s->shares + i * s->widest, sum = 0.0;
        const int64_t first = g->first[p->word], n = g->first[p->word + 1] - first;
        for (int64_t k = 0; k < n; k++)
            sum += share[k] = reach[g->vertices[first + k]] * g->probs[first + k];
        for (int64_t k = 0; k < n; k++) share[k] /= sum;
        const int64_t at = s->n_nodes++;
        s->nodes[at] = (Node){p->node, p->word};
        fluency(&s->ngrams, s->contexts + p->node * n_states, g->words[p->word],
                s->contexts + at * n_states);
        p->node = at;
    }
}

/* Of the paths that say the words of s->text the likeliest: its vertices. */
static void find_path(const Search *s, int64_t length, int32_t *path) {
    const Graph *g = &s->graph;
    const int64_t n = g->n_vertices, start = 0, *from = &start;
    int64_t n_from = 1;
    double *now = s->paths, *before = s->paths + s->widest;
    before[0] = 1.0;
    for (int64_t step = 0; step <= length; step++) { /* the last one is to the last vertex */
        const int64_t end = n - 1, word = step < length ? s->text[step] : NONE;
        const int64_t *to = word == NONE ? &end : g->vertices + g->first[word];
        const int64_t n_to = word == NONE ? 1 : g->first[word + 1] - g->first[word];
        int64_t *origins = s->origins + step * s->widest;
        double most = 0.0;
        for (int64_t k = 0; k < n_to; k++) now[k] = 0.0, origins[k] = 0;
        for (int64_t j = 0, behind = 0; j < n_from; j++) {
            const float *links = g->links + from[j] * n;
            while (behind < n_to && to[behind] <= from[j]) behind++;
            for (int64_t k = behind; k < n_to; k++) {
                const double here = before[j] * links[to[k]];
                if (here > now[k]) now[k] = here, origins[k] = j;
            }
        }
        for (int64_t k = 0; k < n_to; k++) {
            now[k] *= word == NONE ? 1.0 : g->probs[g->first[word] + k];
            most = fmax(most, now[k]);
        }
        for (int64_t k = 0; k < n_to; k++) now[k] /= most > 0.0 ? most : 1.0; /* not to vanish */
        double *other = before;
        before = now, now = other;
        from = to, n_from = n_to;
    }
    for (int64_t step = length, at = 0; step > 0; step--) {
        at = s->origins[step * s->widest + at];
        path[step - 1] = (int32_t)g->vertices[g->first[s->text[step - 1]] + at];
    }
}

static void run(Search *s) {
    Prefix nothing = {.word = NONE};
    clear(&s->now);
    keep(&s->now, nothing);
    s->n_nodes = 1;
    for (int64_t step = 0; step < s->n_steps && s->now.n; step++) {
        for (int64_t i = 0; i < s->now.n; i++) follow_links(s, i);
        finish(s, step + 1);
        if (step + 1 < s->n_steps) extend(s);
    }
    sort(&s->finished);
}

/* search(words, first, vertices, probs, links, orders, tokens, paths, lengths, scores, totals,
 *        n_words, n_vertices, widest, n_steps, n_orders, beam, asked, bos, eos, weight,
 *        length_penalty):
 * addresses of contiguous arrays, and numbers; see oaxe.search.graph_beam_cpu. Returns how many it
 * found. */
static PyObject *search(PyObject *self, PyObject *args) {
    unsigned long long a[11];
    Py_ssize_t n[9];
    double weight, length_penalty;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKKKnnnnnnnnndd", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5],
                          &a[6], &a[7], &a[8], &a[9], &a[10], &n[0], &n[1], &n[2], &n[3], &n[4],
                          &n[5], &n[6], &n[7], &n[8], &weight, &length_penalty))
        return NULL;
    int32_t *tokens = (int32_t *)(uintptr_t)a[6], *paths = (int32_t *)(uintptr_t)a[7];
    int64_t *lengths = (int64_t *)(uintptr_t)a[8];
    double *scores = (double *)(uintptr_t)a[9], *totals = (double *)(uintptr_t)a[10];
    const int64_t n_vertices = n[1], widest = n[2], n_steps = n[3], beam = n[5];
    Search s = {
        .graph = {(const int32_t *)(uintptr_t)a[0], (const int64_t *)(uintptr_t)a[1],
                  (const int64_t *)(uintptr_t)a[2], (const float *)(uintptr_t)a[3],
                  (const float *)(uintptr_t)a[4], n[0], n_vertices},
        .ngrams = ngrams_at(a[5], n[4], weight), .length_penalty = length_penalty,
        .n_steps = n_steps, .widest = widest, .eos = (int32_t)n[8],
        .now = {.most = beam}, .asked = {.most = n[6]}, .finished = {.most = beam},
    };
    const int64_t most_nodes = 1 + beam * (n_steps - 1);
    int failed;
    Py_BEGIN_ALLOW_THREADS
    s.now.of = malloc(s.now.most * sizeof *s.now.of);
    s.asked.of = malloc(s.asked.most * sizeof *s.asked.of);
    s.finished.of = malloc(s.finished.most * sizeof *s.finished.of);
    s.nodes = malloc(most_nodes * sizeof *s.nodes);
    s.contexts = malloc((most_nodes * s.ngrams.n_states + 1) * sizeof *s.contexts);
    s.shares = malloc(beam * widest * sizeof *s.shares);
    s.reach = malloc(beam * n_vertices * sizeof *s.reach);
    s.paths = malloc(2 * widest * sizeof *s.paths);
    s.origins = malloc(n_steps * widest * sizeof *s.origins);
    s.text = malloc(n_steps * sizeof *s.text);
    failed = !s.now.of || !s.asked.of || !s.finished.of || !s.nodes || !s.contexts || !s.shares ||
             !s.reach || !s.paths || !s.origins || !s.text;
    if (!failed) {
        fluency(&s.ngrams, NULL, (int32_t)n[7], s.contexts);
        run(&s);
        for (int64_t i = 0; i < s.finished.n; i++) {
            const Prefix *p = &s.finished.of[i];
            scores[i] = p->score;
            totals[i] = p->total;
            lengths[i] = 0;
            for (int64_t at = p->node; at; at = s.nodes[at].parent) lengths[i]++;
            int64_t k = lengths[i];
            for (int64_t at = p->node; at; at = s.nodes[at].parent) {
                s.text[--k] = s.nodes[at].word;
                tokens[i * n_steps + k] = s.graph.words[s.nodes[at].word];
            }
            find_path(&s, lengths[i], paths + i * n_steps);
        }
    }
    free(s.now.of);
    free(s.asked.of);
    free(s.finished.of);
    free(s.nodes);
    free(s.contexts);
    free(s.shares);
    free(s.reach);
    free(s.paths);
    free(s.origins);
    free(s.text);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    return PyLong_FromLongLong(s.finished.n);
}

static PyMethodDef methods[] = {
    {"search", search, METH_VARARGS, "see oaxe.search.graph_beam_cpu"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_graph_beam", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__graph_beam(void) { return PyModule_Create(&module); }
