/* One pool of the caching allocator over the passes of a long decode; compiled where there is a C
 * compiler. It does what memcalc/allocator does for the default stream under settings that neither
 * limit splits, nor collect garbage, nor expand segments, nor round to powers of two; tests hold
 * the one against the other. All sizes in bytes. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BORN, DIES, LEFT, RISE = 8, CALLED = 9 };
enum { SMALL_REQUEST = 1 << 20, MIN_OWN_SEGMENT = 10 << 20, SEGMENT_ROUNDING = 2 << 20 };
enum { MIN_BLOCK = 512, DEVICE_PAGE = 2 << 20, SMALL_SEGMENT = 2 << 20 };
enum { NOTHING = -2, SMALL = -1 };

typedef struct {
    int64_t address, size, requested;
    int64_t prev, next; /* neighbours in the segment; -1: none. A spare one's next is the next spare. */
    int busy;
} Block;

typedef struct {
    int64_t size, address, block;
} Free;

/* What the caller sets, and reads when passes have been played. */
typedef struct {
    int64_t large_segment, available, allowed; /* allowed: -1 is no limit */
    int64_t used, next_address, small_free;    /* small_free: whole free segments of small blocks */
    int64_t small_requested, small_rounded;    /* small blocks now */
    int64_t requested, bytes, reserved;        /* large blocks; all segments */
    int64_t peak_requested, peak_bytes, peak_reserved;
    int64_t highest, at_requested, at_bytes; /* large blocks when reserved was highest */
    int64_t retries, failed, failed_rounded;
    int64_t is_small; /* which pool it is */
} Figures;

typedef struct {
    Figures figures;
    Block *blocks;
    int64_t count, room, spare, last;
    Free *free;
    int64_t frees, free_room;
} Pool;

/* A storage that lives: its block, or what it takes as a small one. */
typedef struct {
    int64_t block, requested, rounded;
} Held;

static int64_t new_block(Pool *p, int64_t address, int64_t size) {
    int64_t at = p->spare;
    if (at >= 0) {
        p->spare = p->blocks[at].next;
    } else {
        if (p->count == p->room) {
            p->room = p->room ? 2 * p->room : 1024;
            p->blocks = realloc(p->blocks, p->room * sizeof(Block));
            if (!p->blocks) abort();
        }
        at = p->count++;
    }
    p->blocks[at] = (Block){address, size, 0, -1, -1, 0};
    return at;
}

static void drop_block(Pool *p, int64_t at) {
    p->blocks[at].next = p->spare;
    p->spare = at;
}

/* Where the first free block is that is not before this size and address. */
static int64_t place(const Pool *p, int64_t size, int64_t address) {
    int64_t low = 0, high = p->frees;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Free *f = &p->free[middle];
        if (f->size < size || (f->size == size && f->address < address)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void put(Pool *p, int64_t block) {
    const Block *b = &p->blocks[block];
    if (p->frees == p->free_room) {
        p->free_room = p->free_room ? 2 * p->free_room : 1024;
        p->free = realloc(p->free, p->free_room * sizeof(Free));
        if (!p->free) abort();
    }
    int64_t at = place(p, b->size, b->address);
    memmove(p->free + at + 1, p->free + at, (p->frees++ - at) * sizeof(Free));
    p->free[at] = (Free){b->size, b->address, block};
}

static void take(Pool *p, int64_t at) {
    memmove(p->free + at, p->free + at + 1, (--p->frees - at) * sizeof(Free));
}

static void take_block(Pool *p, int64_t block) {
    take(p, place(p, p->blocks[block].size, p->blocks[block].address));
}

static int64_t up(int64_t size, int64_t step) { return (size + step - 1) & -step; }

static int64_t new_segment(Pool *p, int64_t rounded) {
    Figures *f = &p->figures;
    int64_t size = f->is_small ? SMALL_SEGMENT : f->large_segment;
    if (rounded >= MIN_OWN_SEGMENT) size = up(rounded, SEGMENT_ROUNDING);
    if (f->allowed >= 0 && f->reserved + size > f->allowed) return -1;
    if (f->used + up(size, DEVICE_PAGE) > f->available) return -1;
    f->used += up(size, DEVICE_PAGE);
    f->reserved += size;
    if (f->reserved > f->peak_reserved) f->peak_reserved = f->reserved;
    int64_t block = new_block(p, f->next_address, size);
    f->next_address += up(size, DEVICE_PAGE);
    return block;
}

static void release_cached(Pool *p) {
    Figures *f = &p->figures;
    int64_t kept = 0;
    for (int64_t at = 0; at < p->frees; at++) {
        const Block *b = &p->blocks[p->free[at].block];
        if (b->prev >= 0 || b->next >= 0) {
            p->free[kept++] = p->free[at];
            continue;
        }
        f->used -= up(b->size, DEVICE_PAGE);
        f->reserved -= b->size;
        drop_block(p, p->free[at].block);
    }
    p->frees = kept;
    f->used -= f->small_free;
    f->reserved -= f->small_free;
    f->small_free = 0;
}

/* The block that serves a request; -1: there is no room. */
static int64_t allocate(Pool *p, int64_t size) {
    Figures *f = &p->figures;
    int64_t rounded = up(size, MIN_BLOCK), at = place(p, rounded, 0), block;
    if (at < p->frees) {
        block = p->free[at].block;
        take(p, at);
    } else {
        block = new_segment(p, rounded);
        if (block < 0) {
            release_cached(p);
            f->retries++;
            block = new_segment(p, rounded);
        }
        if (block < 0) {
            f->failed = size;
            f->failed_rounded = rounded;
            return -1;
        }
    }
    if (p->blocks[block].size - rounded >= (f->is_small ? MIN_BLOCK : SMALL_REQUEST + 1)) {
        int64_t rest = block, before = p->blocks[rest].prev;
        block = new_block(p, p->blocks[rest].address, rounded);
        Block *b = &p->blocks[block], *r = &p->blocks[rest];
        b->prev = before;
        b->next = rest;
        if (before >= 0) p->blocks[before].next = block;
        r->prev = block;
        r->address += rounded;
        r->size -= rounded;
        put(p, rest);
    }
    Block *b = &p->blocks[block];
    b->busy = 1;
    b->requested = size;
    f->requested += size;
    f->bytes += b->size;
    if (f->reserved > f->highest) {
        f->highest = f->reserved;
        f->at_requested = f->requested;
        f->at_bytes = f->bytes;
    }
    return block;
}

static void release(Pool *p, int64_t block) {
    Block *b = &p->blocks[block];
    p->figures.requested -= b->requested;
    p->figures.bytes -= b->size;
    b->busy = 0;
    int64_t before = b->prev, after = b->next;
    if (before >= 0 && !p->blocks[before].busy) {
        take_block(p, before);
        b->address = p->blocks[before].address;
        b->size += p->blocks[before].size;
        b->prev = p->blocks[before].prev;
        if (b->prev >= 0) p->blocks[b->prev].next = block;
        drop_block(p, before);
    }
    if (after >= 0 && !p->blocks[after].busy) {
        take_block(p, after);
        b->size += p->blocks[after].size;
        b->next = p->blocks[after].next;
        if (b->next >= 0) p->blocks[b->next].prev = block;
        drop_block(p, after);
    }
    put(p, block);
}

static int born(Pool *p, Held *held, int64_t size) {
    if (size > SMALL_REQUEST && p->figures.is_small) {
        held->block = NOTHING; /* of the other pool */
        return 1;
    }
    if (size > SMALL_REQUEST || p->figures.is_small) {
        held->block = allocate(p, size);
        return held->block >= 0;
    }
    *held = (Held){SMALL, size, up(size, MIN_BLOCK)};
    p->figures.small_requested += held->requested;
    p->figures.small_rounded += held->rounded;
    return 1;
}

static void end(Pool *p, Held *held) {
    if (held->block >= 0) {
        release(p, held->block);
    } else if (held->block == SMALL) {
        p->figures.small_requested -= held->requested;
        p->figures.small_rounded -= held->rounded;
    }
    held->block = NOTHING;
}

static void note(Figures *f, int64_t requested, int64_t rounded) {
    requested += f->small_requested + f->requested;
    rounded += f->small_rounded + f->bytes;
    if (requested > f->peak_requested) f->peak_requested = requested;
    if (rounded > f->peak_bytes) f->peak_bytes = rounded;
}

Pool *memcalc_open(const Figures *figures) {
    Pool *p = calloc(1, sizeof(Pool));
    if (!p) return NULL;
    p->figures = *figures;
    p->spare = p->last = -1;
    return p;
}

/* A block of a segment, from its begin on: the first one has no block before it. */
int64_t memcalc_block(Pool *p, int64_t address, int64_t size, int64_t requested, int first) {
    int64_t block = new_block(p, address, size);
    if (!first) {
        p->blocks[block].prev = p->last;
        p->blocks[p->last].next = block;
    }
    p->last = block;
    p->blocks[block].busy = requested > 0;
    p->blocks[block].requested = requested;
    if (!requested) put(p, block);
    return block;
}

/* Plays passes; returns how many were played to their end.
 *
 * plan: operations of four numbers. left: what the pass before has left, by slot; afterwards what
 * the last pass has. words: what kernels take, so many in each pass. since: passes since the one
 * whose sizes are written in the plan. */
int64_t memcalc_play(Pool *p, const int64_t *plan, int64_t length, Held *left, int64_t slots,
                     const int64_t *words, int64_t width, int64_t since, int64_t passes) {
    Held *made = malloc((slots ? slots : 1) * sizeof(Held));
    int64_t pass = 0;
    if (!made) abort();
    for (; pass < passes; pass++, since++, words += width) {
        for (int64_t slot = 0; slot < slots; slot++) made[slot].block = NOTHING;
        for (const int64_t *op = plan; op < plan + 4 * length; op += 4) {
            switch (op[0]) {
            case RISE: note(&p->figures, op[1], op[2]); break;
            case BORN:
                if (!born(p, &made[op[1]], op[3] + op[2] * since)) goto done;
                break;
            case CALLED:
                if (!born(p, &made[op[1]], words[op[2]])) goto done;
                break;
            case DIES: end(p, &made[op[1]]); break;
            default: end(p, &left[op[1]]);
            }
        }
        /* Where passes between were left out, what none of these frees is gone as well. */
        if (p->figures.is_small)
            for (int64_t slot = 0; slot < slots; slot++) end(p, &left[slot]);
        memcpy(left, made, slots * sizeof(Held));
    }
done:
    free(made);
    return pass;
}

void memcalc_end(Pool *p, int64_t block) { release(p, block); }

void memcalc_read(const Pool *p, Figures *figures) { *figures = p->figures; }

void memcalc_close(Pool *p) {
    free(p->blocks);
    free(p->free);
    free(p);
}
