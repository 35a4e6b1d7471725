/* An engine in C over one cache: a batch of requests with chunks of prompts, shared prefixes, a
 * window in one of two groups of layers, trees of drafts, two samples of one prompt. When pages run
 * out, the youngest request goes to a file and comes back when there is room. Every token is
 * compared with that of one request at a time over dense tensors. Prints the same on every
 * machine. */
#include <quire/quire_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  VOCAB = 12,
  HEADS = 2,
  DIM = 16,
  HIDDEN = HEADS * DIM,
  LAYERS = 2,
  WINDOW = 20,
  CHUNK = 16,
  PROMPT = 36,
  WANTED = 64,
  REQUESTS = 4,
  SEQUENCES = REQUESTS + 1, /* the last request has two samples */
  MOST = 256
};

static const int64_t kv_heads_of[LAYERS] = {1, 2};

#define CHECK(call)                                  \
  if ((call) != QUIRE_OK) {                          \
    printf("%s\n  %s\n", #call, quire_last_error()); \
    exit(1);                                         \
  }

/* y [tokens, columns] += x [tokens, width] times a matrix that follows from `number`. */
static void project(const float* x, int64_t tokens, int64_t width, int number, int64_t columns,
                    float* y) {
  int64_t t, i, j;
  memset(y, 0, (size_t)(tokens * columns) * sizeof(float));
  for (t = 0; t < tokens; ++t)
    for (j = 0; j < columns; ++j)
      for (i = 0; i < width; ++i) {
        const uint64_t bits =
            (uint64_t)(number * 1000003 + j * 1009 + i) * UINT64_C(0x9E3779B97F4A7C15);
        y[t * columns + j] += x[t * width + i] * ((float)(bits >> 40) / 8388608.0f - 1.0f);
      }
}

static void embed(const int64_t* ids, int64_t count, float* x) {
  static float one_hot[MOST * VOCAB];
  int64_t t;
  memset(one_hot, 0, sizeof one_hot);
  for (t = 0; t < count; ++t) one_hot[t * VOCAB + ids[t]] = 1;
  project(one_hot, count, VOCAB, 7, HIDDEN, x);
}

static void add(float* x, const float* y, int64_t count) {
  int64_t i;
  for (i = 0; i < count; ++i) x[i] += y[i] * 0.5f;
}

/* The likeliest token after one, or the next likeliest. */
static int64_t next_token(const float* x, int choice) {
  float logits[VOCAB];
  int64_t best = 0, i;
  project(x, 1, HIDDEN, 99, VOCAB, logits);
  for (;; --choice) {
    for (best = 0, i = 1; i < VOCAB; ++i)
      if (logits[i] > logits[best]) best = i;
    if (choice == 0) return best;
    logits[best] = -1e30f;
  }
}

static quire_tensor tensor(const void* data, int32_t rank, int64_t a, int64_t b, int64_t c,
                           int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  quire_tensor made;
  CHECK(quire_tensor_init(&made, (void*)data, QUIRE_F32, rank, shape));
  return made;
}

/* [tokens, heads, dim] in memory, seen as [1, heads, tokens, dim]. */
static quire_tensor by_head(const float* data, int64_t tokens, int64_t heads) {
  quire_tensor made = tensor(data, 4, 1, heads, tokens, DIM);
  made.strides[0] = tokens * heads * DIM;
  made.strides[1] = DIM;
  made.strides[2] = heads * DIM;
  return made;
}

/* The rows of queries, keys and values of a layer. */
static float q_rows[MOST * HIDDEN], k_rows[MOST * HIDDEN], v_rows[MOST * HIDDEN];
static void rows_of(const float* x, int64_t tokens, int layer) {
  const int64_t width = kv_heads_of[layer] * DIM;
  project(x, tokens, HIDDEN, 10 * layer, HIDDEN, q_rows);
  project(x, tokens, HIDDEN, 10 * layer + 1, width, k_rows);
  project(x, tokens, HIDDEN, 10 * layer + 2, width, v_rows);
}

/* One request at a time, every token from scratch. */
static void alone(int64_t* ids, int choice) {
  static float x[MOST * HIDDEN], out[MOST * HIDDEN];
  quire_mask_mod* rules[LAYERS];
  int64_t count;
  int layer;
  CHECK(quire_mask_mod_create("(q_idx >= kv_idx) & (q_idx - kv_idx < 20)", NULL, &rules[0]));
  CHECK(quire_mask_mod_create("q_idx >= kv_idx", NULL, &rules[1]));
  for (count = PROMPT; count < WANTED; ++count, choice = 0) {
    embed(ids, count, x);
    for (layer = 0; layer < LAYERS; ++layer) {
      quire_tensor q, k, v, to;
      quire_attention_problem problem = {0};
      quire_attention_outputs outputs = {0};
      rows_of(x, count, layer);
      q = by_head(q_rows, count, HEADS);
      k = by_head(k_rows, count, kv_heads_of[layer]);
      v = by_head(v_rows, count, kv_heads_of[layer]);
      to = by_head(out, count, HEADS);
      problem.size = sizeof problem;
      problem.q = &q;
      problem.k = &k;
      problem.v = &v;
      problem.mask_mod = rules[layer];
      problem.enable_gqa = 1;
      outputs.size = sizeof outputs;
      outputs.out = &to;
      CHECK(quire_attention(&problem, &outputs));
      add(x, out, count * HIDDEN);
    }
    ids[count] = next_token(x + (count - 1) * HIDDEN, choice);
  }
  quire_mask_mod_free(rules[0]);
  quire_mask_mod_free(rules[1]);
}

typedef enum { NOT_YET, HERE, IN_A_FILE, DONE } place;

typedef struct {
  place place;
  int64_t ids[WANTED + 8], count; /* the last one is not in the cache yet */
  int choice;                     /* of the first token that is made */
  quire_sequence sequence;
  int64_t new_ids[CHUNK], new_count; /* of the step; a tree if there are parents */
  int64_t parents[8], parent_count;
} request;

static quire_kv_cache* cache;
static request all[SEQUENCES];
static int preemptions, returns;

static int64_t length_of(quire_sequence sequence) {
  quire_sequence_view view = {0};
  view.size = sizeof view;
  CHECK(quire_kv_cache_view(cache, sequence, 0, &view));
  return view.length;
}

/* What came after a token before; which: the last time, or the time before. */
static int64_t guess(const request* one, int64_t id, int which) {
  int64_t t;
  for (t = one->count - 2; t >= 0; --t)
    if (one->ids[t] == id && which-- == 0) return one->ids[t + 1];
  return (id + which + 2) % VOCAB;
}

/* A chunk of the prompt, or the last token with guesses behind it. */
static void draft(request* one) {
  const int64_t there = length_of(one->sequence);
  int64_t i;
  one->parent_count = 0;
  if (there + 1 < one->count) {
    one->new_count = one->count - there < CHUNK ? one->count - there : CHUNK;
    memcpy(one->new_ids, one->ids + there, (size_t)one->new_count * sizeof(int64_t));
    return;
  }
  one->new_ids[0] = one->ids[one->count - 1];
  one->parents[0] = -1;
  for (i = 1; i < 7; ++i) { /* two guesses behind each of the first three */
    one->parents[i] = (i - 1) / 2;
    one->new_ids[i] = guess(one, one->new_ids[one->parents[i]], (int)(i % 2));
  }
  one->new_count = one->parent_count = 7;
}

/* Down the tree as long as a guess is what the model says; the other branches go. */
static int accept(request* one, const float* x) {
  const int64_t begin = length_of(one->sequence) - one->new_count;
  int64_t path[8], at = 0, child, next = next_token(x, 0);
  const int64_t* positions = path;
  size_t length = 1;
  quire_kept_tokens kept = {0};
  path[0] = begin;
  for (child = 1; child < one->new_count; ++child) {
    if (one->parents[child] != at || one->new_ids[child] != next) continue;
    one->ids[one->count++] = next;
    path[length++] = begin + child;
    at = child;
    next = next_token(x + at * HIDDEN, 0);
  }
  one->ids[one->count++] = next;
  kept.size = sizeof kept;
  kept.sequence_count = 1;
  kept.sequences = &one->sequence;
  kept.begins = &begin;
  kept.positions = &positions;
  kept.position_counts = &length;
  CHECK(quire_kv_cache_keep(cache, &kept));
  CHECK(quire_kv_cache_commit(cache, one->sequence, begin + (int64_t)length));
  return (int)length - 1;
}

/* What the requests in the cache get next; `step` points into this. */
typedef struct {
  request* of[SEQUENCES];
  quire_sequence sequences[SEQUENCES];
  int64_t counts[SEQUENCES];
  const int64_t* ids[SEQUENCES];
  int32_t drafts[SEQUENCES];
  quire_sequence_options trees[SEQUENCES];
  const quire_sequence_options* tree_list[SEQUENCES];
  size_t tree_count;
  quire_step step;
} batch;

static void make_batch(batch* made) {
  int i;
  memset(made, 0, sizeof *made);
  for (i = 0; i < SEQUENCES; ++i) {
    const size_t at = made->step.sequence_count;
    request* one = &all[i];
    quire_sequence_options* tree = &made->trees[at];
    if (one->place != HERE) continue;
    draft(one);
    made->of[at] = one;
    made->sequences[at] = one->sequence;
    made->counts[at] = one->new_count;
    made->ids[at] = one->new_ids;
    made->drafts[at] = one->parent_count > 0;
    ++made->step.sequence_count;
    if (one->parent_count == 0) continue;
    tree->size = sizeof *tree;
    tree->sequence = one->sequence;
    tree->parents = one->parents;
    tree->parent_count = (size_t)one->parent_count;
    made->tree_list[made->tree_count++] = tree;
  }
  made->step.size = sizeof made->step;
  made->step.sequences = made->sequences;
  made->step.counts = made->counts;
  made->step.ids = made->ids;
  made->step.drafts = made->drafts;
}

static int fits(void) {
  static batch next;
  int32_t can;
  make_batch(&next);
  CHECK(quire_kv_cache_can_reserve(cache, &next.step, &can));
  return can;
}

static const char* file_of(const request* one) {
  static char name[40];
  snprintf(name, sizeof name, "quire_c_engine_%d.kv", (int)(one - all));
  return name;
}

/* The youngest request gives its pages back. */
static void preempt(void) {
  request* last = NULL;
  int i;
  for (i = 0; i < SEQUENCES; ++i)
    if (all[i].place == HERE) last = &all[i];
  if (last == NULL) {
    printf("the cache is too small for one request\n");
    exit(1);
  }
  CHECK(quire_kv_cache_save_to_file(cache, last->sequence, file_of(last)));
  CHECK(quire_kv_cache_release(cache, last->sequence));
  last->place = IN_A_FILE;
  ++preemptions;
}

/* Oldest first, as long as the next step fits with them. What others still hold is shared. */
static void bring_back(void) {
  int i;
  for (i = 0; i < SEQUENCES; ++i) {
    request* one = &all[i];
    if (one->place != IN_A_FILE) continue;
    if (quire_kv_cache_load_from_file(cache, file_of(one), 0, &one->sequence) != QUIRE_OK) return;
    one->place = HERE;
    if (!fits()) {
      CHECK(quire_kv_cache_release(cache, one->sequence));
      one->place = IN_A_FILE;
      return;
    }
    remove(file_of(one));
    ++returns;
  }
}

/* One step of the requests in the cache; returns how many guesses were right. */
static int run_step(void) {
  static float x[MOST * HIDDEN], out[MOST * HIDDEN];
  static int64_t ids[MOST];
  static batch now;
  quire_attend_options options = {0};
  int64_t tokens = 0, row = 0;
  int layer, accepted = 0;
  size_t i;
  make_batch(&now);
  for (i = 0; i < now.step.sequence_count; ++i) {
    memcpy(ids + tokens, now.ids[i], (size_t)now.counts[i] * sizeof(int64_t));
    tokens += now.counts[i];
  }
  options.size = sizeof options;
  options.q_heads = HEADS;
  options.sequence_options = now.tree_list;
  options.sequence_option_count = now.tree_count;
  CHECK(quire_kv_cache_append(cache, &now.step));
  embed(ids, tokens, x);
  for (layer = 0; layer < LAYERS; ++layer) {
    quire_tensor q, k, v, to;
    quire_attention_outputs outputs = {0};
    quire_attention_plan* plan = NULL;
    CHECK(quire_kv_cache_group_of(cache, layer, &options.group));
    CHECK(quire_attend_plan_create(cache, &now.step, &options, &plan));
    rows_of(x, tokens, layer);
    q = tensor(q_rows, 3, tokens, HEADS, DIM, 0);
    k = tensor(k_rows, 3, tokens, kv_heads_of[layer], DIM, 0);
    v = tensor(v_rows, 3, tokens, kv_heads_of[layer], DIM, 0);
    to = tensor(out, 3, tokens, HEADS, DIM, 0);
    outputs.size = sizeof outputs;
    outputs.out = &to;
    CHECK(quire_kv_cache_write(cache, layer, &now.step, &k, &v));
    CHECK(quire_attend_plan_run(plan, cache, layer, &q, &outputs));
    quire_attention_plan_free(plan);
    add(x, out, tokens * HIDDEN);
  }
  for (i = 0; i < now.step.sequence_count; ++i) {
    request *one = now.of[i], *second = &all[REQUESTS];
    const float* first = x + row * HIDDEN;
    const float* last;
    row += now.counts[i];
    last = x + (row - 1) * HIDDEN;
    if (now.drafts[i]) {
      accepted += accept(one, first);
    } else if (length_of(one->sequence) == one->count) { /* the prompt is there */
      if (one == &all[REQUESTS - 1]) {                   /* the second sample */
        *second = *one;
        second->choice = 1;
        CHECK(quire_kv_cache_fork(cache, one->sequence, -1, &second->sequence));
        second->ids[second->count++] = next_token(last, 1);
      }
      one->ids[one->count++] = next_token(last, 0);
    }
    if (one->count < WANTED) continue;
    CHECK(quire_kv_cache_release(cache, one->sequence));
    one->place = DONE;
  }
  return accepted;
}

int main(void) {
  const int64_t window_layers[1] = {0}, full_layers[1] = {1};
  quire_kv_layer_group window = {0}, full = {0};
  const quire_kv_layer_group* groups[2];
  quire_kv_cache_options options = {0};
  quire_kv_cache_stats stats = {0};
  int64_t found = 0, some, t;
  int i, steps = 0, arrived = 0, accepted = 0, is_same = 1;

  window.size = full.size = sizeof window;
  window.layers = window_layers;
  full.layers = full_layers;
  window.layer_count = full.layer_count = 1;
  window.kv_heads = kv_heads_of[0];
  full.kv_heads = kv_heads_of[1];
  window.head_dim = full.head_dim = DIM;
  window.window = WINDOW;
  window.n_pages = 30; /* less than all requests together want */
  full.n_pages = 40;
  groups[0] = &window;
  groups[1] = &full;
  options.size = sizeof options;
  options.page_size = 4;
  options.groups = groups;
  options.group_count = 2;
  CHECK(quire_kv_cache_create(&options, &cache));

  for (;;) {
    int done = 0;
    for (i = 0; i < SEQUENCES; ++i) done += all[i].place == DONE;
    if (done == SEQUENCES) break;
    if (arrived < REQUESTS) { /* one more request; whole pages that begin like it are there */
      request* one = &all[arrived];
      for (t = 0; t < PROMPT; ++t) one->ids[t] = t < 24 ? t * t % VOCAB : t * arrived % VOCAB;
      one->count = PROMPT;
      one->place = HERE;
      CHECK(
          quire_kv_cache_create_with_prefix(cache, one->ids, PROMPT - 1, 0, &one->sequence, &some));
      found += some;
      ++arrived;
    }
    bring_back();
    while (!fits()) preempt();
    accepted += run_step();
    ++steps;
  }
  stats.size = sizeof stats;
  CHECK(quire_kv_cache_get_stats(cache, -1, &stats));
  for (i = 0; i < SEQUENCES; ++i) {
    int64_t ids[WANTED];
    memcpy(ids, all[i].ids, PROMPT * sizeof(int64_t));
    alone(ids, all[i].choice);
    for (t = 0; t < WANTED; ++t) is_same &= ids[t] == all[i].ids[t];
  }
  printf("%d steps, %d tokens found, %d guesses accepted\n", steps, (int)found, accepted);
  printf("%d requests went to a file, %d came back; %d sequences and %d pages are left\n",
         preemptions, returns, (int)stats.sequences, (int)stats.used_pages);
  printf("every token is that of one request at a time: %s\n", is_same ? "yes" : "no");
  quire_kv_cache_free(cache);
  return is_same ? 0 : 1;
}
