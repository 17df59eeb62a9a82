/* The kernels for every other processor. */
#include "kernels.h"

#define SB_TABLE sb_kernels_portable
#include "kernels_table.h"
