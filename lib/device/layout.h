/* Strided views as the fewest dimensions, and their copies on memory that the host can reach. */
#ifndef FERRY_DEVICE_LAYOUT_H
#define FERRY_DEVICE_LAYOUT_H

#include <ferry/device_backend.h>

/* ferry_device_host_t.layout. */
ferry_status_t layout_init(const DLTensor *view, ferry_layout_t *layout_out);

/* The bytes that walking the layout touches: [low, high) relative to layout.data. */
void layout_reach(const ferry_layout_t *layout, int64_t *low_out, int64_t *high_out);

/* data takes the place of layout->data. */
void layout_gather(const ferry_layout_t *layout, const void *data, void *packed);
void layout_scatter(const ferry_layout_t *layout, void *data, const void *packed);

#endif
