/* Reading and writing the msgpack maps of the naming protocol. Bytes are checked in full before msgpack-c sees them, because
 * it allocates what a container's count announces. */
#ifndef FERRY_NAMING_FIELDS_H
#define FERRY_NAMING_FIELDS_H

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIELDS_DEPTH_MAX 8

/* Whether data is exactly one well-formed msgpack value, nested no deeper than FIELDS_DEPTH_MAX. */
bool fields_sane(const void *data, size_t bytes);

/* A map under reading; what the getters hand out lives in data and in the map. */
struct fields {
    msgpack_unpacked unpacked;
    msgpack_object_map map;
};

/* False: not a map, or not sane; then there is nothing to close. */
bool fields_open(struct fields *fields, const void *data, size_t bytes);
void fields_close(struct fields *fields);

/* Each is false when the field is missing, of another type or (text) does not fit or holds a NUL. */
bool fields_text(const struct fields *fields, const char *key, char *buffer, size_t capacity);
bool fields_bytes(const struct fields *fields, const char *key, const void **data_out,
                  size_t *bytes_out);
bool fields_number(const struct fields *fields, const char *key, uint64_t *number_out);
bool fields_flag(const struct fields *fields, const char *key, bool *flag_out);

/* A map under writing: the number of fields first, then each. A failed allocation sets failed. */
struct fields_writer {
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    bool failed;
};

void fields_write(struct fields_writer *writer, size_t count);
void fields_write_text(struct fields_writer *writer, const char *key, const char *text);
void fields_write_bytes(struct fields_writer *writer, const char *key, const void *data,
                        size_t bytes);
void fields_write_number(struct fields_writer *writer, const char *key, uint64_t number);
void fields_write_flag(struct fields_writer *writer, const char *key, bool flag);
/* Frees it. */
void fields_write_finish(struct fields_writer *writer);

#endif
