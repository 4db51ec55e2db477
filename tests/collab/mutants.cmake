# Mutants of collab/: in each, one rule is put back to what an easier protocol would do, and the search
# must find what breaks. hth_mutant(NAME FILE OLD NEW [FILE OLD NEW]...): OLD must stand in the file
# exactly once.
function(hth_mutant name)
    if(NOT HEARTH_TESTS OR HEARTH_FUZZ OR HEARTH_SANITIZE OR NOT CMOCKA_FOUND)
        return()
    endif()
    foreach(file chain.c choice.c)
        file(READ ${HEARTH_ROOT}/collab/${file} text_${file})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${HEARTH_ROOT}/collab/${file})
    endforeach()
    set(change ${ARGN})
    while(change)
        list(POP_FRONT change file old new)
        string(REPLACE "${old}" "" without "${text_${file}}")
        string(LENGTH "${text_${file}}" before)
        string(LENGTH "${without}" after)
        string(LENGTH "${old}" size)
        math(EXPR times "(${before} - ${after}) / ${size}")
        if(NOT times EQUAL 1)
            message(FATAL_ERROR "mutant ${name}: collab/${file} has ${times} times: ${old}")
        endif()
        string(REPLACE "${old}" "${new}" text_${file} "${text_${file}}")
    endwhile()
    foreach(file chain.c choice.c)
        file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/mutant_${name}/${file}
            CONTENT "${text_${file}}" @ONLY)
    endforeach()
    hth_test(test_collab_mutant_${name} LINK hth_sim hth_core TIMEOUT 300
        SOURCES test_mutant.c world.c search.c
            ${CMAKE_CURRENT_BINARY_DIR}/mutant_${name}/chain.c
            ${CMAKE_CURRENT_BINARY_DIR}/mutant_${name}/choice.c
            ${HEARTH_ROOT}/collab/fold.c ${HEARTH_ROOT}/collab/proof.c)
    target_compile_definitions(test_collab_mutant_${name} PRIVATE HTH_MUTANT="${name}")
endfunction()

# Callers and quorum follow from each member's own head, not from the one before.
hth_mutant(tip chain.c
    "return at->kind == HTH_LINK_STEP && at->prev != HTH_LINK_NONE ? at->prev : link"
    "return at->kind == HTH_LINK_STEP ? link : link")
# A head is chosen by tally alone, whatever members accepted before.
hth_mutant(tally choice.c
    "if (seat->accepted != HTH_LINK_NONE &&"
    "if (c->seats == 0 &&")
# A head names step, link before and roll, not the bits.
hth_mutant(head
    chain.c "hth_wire_u32(io, &link->ballot)" "(void)0"
    chain.c "hth_wire_bytes(io, &link->mean, sizeof(link->mean))" "(void)0")
# A member that did not see its step end brings the same samples again.
hth_mutant(batch chain.c
    "link = hth_chain_at(chain, link)->prev) {"
    "link = HTH_LINK_NONE) {")
# A LEAVE counts at once: its sender need not vote any more.
hth_mutant(leave
    choice.c "if (!(roll[i].marks & (HTH_ROLL_IN | HTH_ROLL_PART)))" "if (roll[i].marks == 0)"
    choice.c "stays : HTH_ROLL_PART"
    "stays : roll[i].marks & HTH_ROLL_LEFT ? HTH_ROLL_LEFT : HTH_ROLL_PART"
    chain.c "return link->roll[i].marks & HTH_ROLL_IN"
    "return link->roll[i].marks & (HTH_ROLL_IN | HTH_ROLL_LEFT)"
    chain.c "return marks == HTH_ROLL_PART ||" "return marks == HTH_ROLL_LEFT || marks == HTH_ROLL_PART ||")
# A member that starts again from a checkpoint votes as before.
hth_mutant(amnesia chain.c
    "struct member key = {.id = *id, .life = life}"
    "struct member key = {.id = *id, .life = 0 * life}")
# Voters are the members of all rolls in the window.
hth_mutant(all chain.c
    "in += is_in(hth_chain_entry(chain, link, member))"
    "in = k == in && is_in(hth_chain_entry(chain, link, member)) ? (uint16_t)(k + 1) : 0")
# A member takes a link that it refused from whoever holds it.
hth_mutant(follow choice.c
    "return hth_chain_better(c->chain, link, c->tip) && !hth_choice_refuses(c, link)"
    "return hth_chain_better(c->chain, link, c->tip)")
# A member that refused a link refuses it for ever.
hth_mutant(stubborn choice.c "open |= HTH_CHOICE_YIELD" "(void)0")
