/* Prints UCX's configuration as Ferry leaves it: one "UCX_NAME=value" a line. */
#include <ferry/ferry.h>
#include <stdio.h>

#include "transports/ucx/ucx_internal.h"

int main(void)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        fprintf(stderr, "ucx_settings: %s\n", ucs_status_string(status));
        return 1;
    }
    bool done = ucx_configure(config, NULL) == FERRY_OK;
    if (done) {
        ucp_config_print(config, stdout, NULL, UCS_CONFIG_PRINT_CONFIG);
    } else {
        fprintf(stderr, "ucx_settings: %s\n", ferry_last_error()->text);
    }
    ucp_config_release(config);
    return !done;
}
