/* Status codes: a closed list whose every value has its own name and sentence. */
#include <criterion/criterion.h>
#include <string.h>

#include <ferry/status.h>

Test(status, every_code_has_its_own_name_and_sentence)
{
    for (int a = 0; a < FERRY_STATUS_COUNT; a++) {
        const char *name = ferry_status_name((ferry_status_t)a);
        cr_assert_neq(strcmp(name, "unknown status"), 0, "code %d has no name", a);
        cr_assert_eq(strncmp(name, "FERRY_", 6), 0, "%s", name);
        cr_assert_gt(strlen(ferry_status_text((ferry_status_t)a)), 5, "%s has no sentence", name);
        for (int b = 0; b < a; b++) {
            cr_assert_str_neq(name, ferry_status_name((ferry_status_t)b));
            cr_assert_str_neq(ferry_status_text((ferry_status_t)a),
                              ferry_status_text((ferry_status_t)b));
        }
    }
}

Test(status, names_are_those_of_the_header)
{
    cr_assert_str_eq(ferry_status_name(FERRY_OK), "FERRY_OK");
    cr_assert_str_eq(ferry_status_name(FERRY_ERR_TIMEOUT), "FERRY_ERR_TIMEOUT");
    cr_assert_str_eq(ferry_status_name(FERRY_ERR_FORKED), "FERRY_ERR_FORKED");
    cr_assert_str_eq(ferry_status_text(FERRY_ERR_TIMEOUT), "the call's own timeout passed");
}

Test(status, codes_outside_the_list_are_unknown)
{
    cr_assert_str_eq(ferry_status_name(FERRY_STATUS_COUNT), "unknown status");
    cr_assert_str_eq(ferry_status_text((ferry_status_t)-1), "unknown status");
    cr_assert_str_eq(ferry_status_name((ferry_status_t)100000), "unknown status");
}
