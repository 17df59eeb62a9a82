/* Repacks GGUF rows into tiles.  Runs once per model, so it is written to be read. */
#include "matrix.h"

#include <string.h>

/* GGUF blocks: Q4_0 = scale, 16 bytes; Q4_1 = scale, minimum, 16 bytes; Q8_0 = scale, 32 bytes.
 * Byte i of a 4-bit block holds element i in its low half and element i + 16 in its high half. */
static int64_t source_header(sb_type type) { return type == SB_Q4_1 ? 4 : 2; }

static int64_t source_block(sb_type type) { return source_header(type) + (type == SB_Q8_0 ? 32 : 16); }

/* The low halves of eight bytes, first byte lowest. */
static uint32_t low_halves(uint64_t bytes) {
    bytes &= 0x0f0f0f0f0f0f0f0fu;
    bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ffu;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(bytes | bytes >> 16);
}

/* Lane number `lane` of a row: the next 4 (8-bit) or 8 (4-bit) quants. */
static uint32_t lane_at(sb_type type, const uint8_t *quants, int lane) {
    if (type == SB_Q8_0) {
        uint32_t four;
        memcpy(&four, quants + 4 * lane, 4);
        return four ^ 0x80808080u; /* the signed values plus 128 */
    }
    uint64_t eight;
    memcpy(&eight, quants + 8 * (lane & 1), 8);
    return low_halves(lane < 2 ? eight : eight >> 4);
}

/* One row's share of one packed block. */
static void pack_block(uint8_t *packed, sb_type type, const uint8_t *source, int row) {
    memcpy(packed + 2 * row, source, 2);
    packed += 2 * SB_TILE;
    if (type == SB_Q4_1) {
        memcpy(packed + 2 * row, source + 2, 2);
        packed += 2 * SB_TILE;
    }
    source += source_header(type);
    for (int i = 0; i < (type == SB_Q8_0 ? 8 : 4); i++) {
        uint32_t lane = lane_at(type, source, i);
        memcpy(packed + i * SB_TILE * 4 + 4 * row, &lane, 4);
    }
}

static void pack_row(uint8_t *tile, sb_type type, const uint8_t *source, int row, int64_t cols) {
    if (type == SB_F32) {
        for (int64_t k = 0; k < cols; k++) memcpy(tile + 4 * (k * SB_TILE + row), source + 4 * k, 4);
        return;
    }
    for (int64_t b = 0; b < cols / SB_QBLOCK; b++)
        pack_block(tile + b * sb_block_bytes(type), type, source + b * source_block(type), row);
}

void sb_pack(const sb_packing *p) {
    int64_t bytes = sb_tile_bytes(p->type, p->cols);
    uint8_t *tile = p->packed;
    for (int64_t i = 0; i < p->tiles; i++, tile += bytes) {
        memset(tile, 0, (size_t)bytes); /* a scale of 0 makes rows of zeros */
        for (int row = 0; row < SB_TILE; row++) {
            const uint8_t *source = p->rows[i * SB_TILE + row];
            if (source) pack_row(tile, p->type, source, row, p->cols);
        }
    }
}
