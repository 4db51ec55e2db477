/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h: every bound in one place. Without a bound, a number from a peer or a file would decide
 * how much of this machine it uses. A test crosses each of them.
 */
#ifndef HTH_CORE_LIMITS_H
#define HTH_CORE_LIMITS_H

/* core */
#define HTH_BLOCKS_BYTES_MAX (256u << 20) /* freed blocks kept for reuse */

/* env: streams and jobs */
#define HTH_STREAM_QUEUE_BYTES_MAX (256u << 20)   /* waiting to be sent on one stream */
#define HTH_STREAM_LOW_BYTES       (256u << 10)   /* on_drained below this */
#define HTH_STREAMS_MAX            4096           /* open at once in one environment */
#define HTH_STREAMS_PER_ADDR_MAX   256            /* accepted from one address, or IPv6 /64 */
#define HTH_LANE_JOBS_MAX          16384          /* jobs that wait in one lane */
#define HTH_CARDS_MAX              16             /* in one process */
#define HTH_STRANGER_BYTES_MAX     4096           /* read of an accepted stream that nobody knows */
#define HTH_HANDSHAKE_TIMEOUT_US   (10 * 1000000) /* hth_net_opts.handshake_timeout_us */
#define HTH_DIAL_TIMEOUT_US        (5 * 1000000)
#define HTH_FLUSH_TIMEOUT_US       (5 * 1000000)
/* AES-GCM is safe for 2^24.5 records under one key (RFC 8446, 5.5); at this count the key is
 * changed. Tests reach it with a smaller hth_net_opts.key_records_max. */
#define HTH_TLS_KEY_RECORDS_MAX (1u << 23)

/* http */
#define HTH_HTTP_REQUEST_BYTES_MAX 8192           /* a request's head */
#define HTH_HTTP_PAGES_MAX         16             /* paths that are served */
#define HTH_HTTP_CONNS_MAX         1024           /* open at once */
#define HTH_HTTP_PREFIX_CONNS_MAX  16             /* of a public page, from one address prefix */
#define HTH_HTTP_PREFIX_PER_S      10             /* requests, likewise */
#define HTH_HTTP_REQUEST_US        (10 * 1000000) /* until a request is there; also between two */
#define HTH_HTTP_READ_US           (30 * 1000000) /* until an answer is read */

/* rpc */
#define HTH_FRAME_META_BYTES_MAX (64u << 10) /* the Protocol Buffers part of a frame */
#define HTH_FRAME_BODY_BYTES_MAX (1u << 30)  /* the tensors of a frame */
#define HTH_FRAME_TENSORS_MAX    4096

/* rpc endpoint */
#define HTH_RPC_VERSION_MIN        1
#define HTH_RPC_VERSION_MAX        1
#define HTH_RPC_HELLO_BYTES_MAX    2048  /* a HELLO's meta: ours is below 900 */
#define HTH_RPC_TEXT_MAX           200   /* a refusal's or goodbye's text */
#define HTH_RPC_CONNS_PER_PEER_MAX 4     /* connections of one identity */
#define HTH_RPC_PEERS_MAX          65536 /* peers remembered */
#define HTH_RPC_REQUESTS_MAX       65536 /* in flight on one connection, with any HELLO */
#define HTH_RPC_TIMEOUT_MS_MAX     (24u * 3600 * 1000) /* of one request */
#define HTH_RPC_ARENA_BYTES_MAX    (1u << 20)          /* one frame's meta after unpacking */
#define HTH_RPC_PROGRESS_BYTES_MIN 4096 /* per stall timeout, in the middle of a frame */
#define HTH_RPC_STALL_WINDOWS_MAX  128  /* stall timeouts that a body or a backlog may take */
#define HTH_RPC_BODY_WINDOWS       6    /* stall timeouts that any body may take */
#define HTH_RPC_LINE_BYTES_MIN     65536 /* a second: what a large body must arrive with */

/* dht */
#define HTH_DHT_VALUE_BYTES_MAX 4096 /* one record as stored */
#define HTH_CLOCK_SKEW_MAX_US   (3 * 1000000)

/* admission */
#define HTH_CERT_NAME_MAX    32   /* bytes of a member's name */
#define HTH_INVITE_ADDRS_MAX 4    /* addresses to join through */
#define HTH_GATE_KNOWN       1024 /* verdicts remembered */
#define HTH_REVOKED_MAX      400  /* entries of a list: it fits in a record */
#define HTH_REVOKED_LISTS    16   /* of a run: its owner's and its deputies' */
#define HTH_LIST_COPIES_MIN  8    /* records of one list, by so many members */
#define HTH_LIST_COPIES_MAX  32

/* grid of experts */
#define HTH_GRID_DIMS_MAX 3
#define HTH_GRID_DIM_MAX  65536 /* coordinates along one axis */
#define HTH_NAME_LEN_MAX  63    /* a run's or layer's name */
#define HTH_TOP_K_MAX     64

/* dht: records, boards, announcer, directory, joining */
#define HTH_GRID_EXPERTS_MAX            (1u << 24) /* experts of one layer */
#define HTH_RECORD_AIM_BYTES            500        /* longer ones arrive late under jitter */
#define HTH_RECORD_LIFE_MIN_US          (1 * 1000000)
#define HTH_RECORD_LIFE_MAX_US          (600 * 1000000)
#define HTH_TOPIC_EPOCH_US              (120 * INT64_C(1000000)) /* the life of a topic's key */
#define HTH_RECORD_CACHE_MAX            8192       /* digests whose signature was checked */
#define HTH_BOARD_RECORDS_MAX           4096       /* believed under one key */
#define HTH_BOARD_RECORDS_PER_OWNER_MAX 64         /* of them by one owner */
#define HTH_BOARD_BYTES_MAX             (2u << 20) /* and their bytes */
#define HTH_BOARD_WAITING_MAX           64         /* records whose owner's pass is not known yet */
#define HTH_BOARD_VERIFY_PER_S_MAX      2000 /* signatures checked under one key in a second */
#define HTH_ANNOUNCE_LAYERS_MAX         256
#define HTH_ANNOUNCE_EXPERTS_MAX        65536 /* of one host in one layer */
#define HTH_ANNOUNCE_ROOT_PARTS_MAX     4
#define HTH_ANNOUNCE_LOAD_STEP_MS       20
#define HTH_ANNOUNCE_GOODBYE_US         (2 * 1000000)
#define HTH_DIR_LAYERS_MAX              256
#define HTH_STATUS_CLAIMS_MAX           1024 /* different layers of a run that status shows */
#define HTH_DIR_HOSTS_MAX               16384
#define HTH_DIR_BRANCHES_MAX            1024 /* prefixes of one layer watched besides its root */
#define HTH_DIR_REPLICAS_MAX            64   /* claims read when an expert's hosts are listed */
#define HTH_DIR_PROVED_MAX              8    /* hosts of an expert that are up: enough proofs */
#define HTH_DIR_POSTINGS_MAX            (8u << 20) /* (expert, record) pairs of one layer */
#define HTH_PEERCACHE_PEERS_MAX         256
#define HTH_PEERCACHE_BYTES_MAX         (64u << 10)
#define HTH_BOOTSTRAP_MAX               64

/* averaging */
#define HTH_AVG_WEIGHT_MAX     1e9        /* of one contribution: samples */
#define HTH_AVG_REASONS_MAX    64         /* reasons of averaging/averager.h are below */
#define HTH_AVG_STATUS_MEMBERS 8          /* of a group, that a status names */
#define HTH_AVG_DIMS_MAX       8          /* axes of the averaging grid */
#define HTH_AVG_CELLS_MAX      (1u << 24) /* cells of it */
#define HTH_AVG_MEMBERS_MAX    256        /* members of a group */
#define HTH_AVG_BANDWIDTH_MIN  1e-6       /* declared, when it is not 0; any unit */
#define HTH_AVG_BANDWIDTH_MAX  1e15

/* averaging: matchmaking */
#define HTH_AVG_LOOKERS_MAX   1024            /* who joined one host */
#define HTH_AVG_WINDOW_MAX_US (300 * 1000000) /* of matchmaking for one group */

/* averaging: the reduction in a group */
#define HTH_AVG_SPANS_MAX             8192         /* runs of one format in a vector */
#define HTH_AVG_SEGMENTS_MAX          512          /* of them in one part */
#define HTH_AVG_PART_FLOATS_MAX       (128u << 10) /* of one part: 512 KiB */
#define HTH_AVG_ROUNDS_MAX            64   /* under way at a reducer */
#define HTH_AVG_EARLY_PARTS_MAX       512 /* held for rounds that have not begun */
#define HTH_AVG_EARLY_PER_PEER_MAX    32   /* ... of one peer */
#define HTH_AVG_EARLY_BYTES_MAX       (64u << 20) /* ... of all */
#define HTH_AVG_REDUCE_TIMEOUT_MAX_US (3600 * INT64_C(1000000))

/* data sets */
#define HTH_MANIFEST_BYTES_MAX   (16u << 20)         /* of data.json */
#define HTH_SHARDS_MAX           65536               /* of one data set */
#define HTH_SHARD_BYTES_MAX      (64u << 20)         /* of one shard as stored */
#define HTH_SHARD_UNPACKED_MAX   (256u << 20)        /* ... and unpacked: no bombs */
#define HTH_SHARD_SAMPLES_MAX    (1u << 20)          /* of one shard */
#define HTH_SHARD_KEY_MAX        63                  /* bytes of a sample's name in a shard */
#define HTH_SET_SAMPLES_MAX      (UINT64_C(1) << 36) /* of one data set */
#define HTH_SET_SIDE_MAX         512                 /* pixels of a stored picture's side */
#define HTH_SET_CLASSES_MAX      65536
#define HTH_CAPTION_BYTES_MAX    4096        /* of one caption */
#define HTH_DOCUMENT_BYTES_MAX   (64u << 10) /* of one sample of text */
#define HTH_PICTURE_BYTES_MAX    (64u << 20) /* of a PNG or JPEG file */
#define HTH_PICTURE_SIDE_MAX     16384       /* pixels of its side */
#define HTH_PICTURE_PIXELS_MAX   (1u << 26)  /* and of the whole: 256 MiB as RGBA */
#define HTH_WORDS_BYTES_MAX      (8u << 20)  /* of words.json */
#define HTH_WORDS_MAX            65278       /* words: with 258 other ids 2^16 */
#define HTH_WORD_BYTES_MAX       64          /* of one word */
#define HTH_WORDS_COUNTED_MAX    (1u << 20)  /* different words of a text, counted */
#define HTH_TEXT_FILE_BYTES_MAX  (1u << 30)  /* of a text or jsonl file, unpacked */
#define HTH_JSONL_LINE_BYTES_MAX (1u << 20)  /* of one line of it */

/* trainer */
#define HTH_IDX_ITEMS_MAX      (1u << 27) /* items of one idx file */
#define HTH_IDX_ITEM_BYTES_MAX (1u << 20) /* bytes of one item of an idx file */
#define HTH_DATA_SHIFT_MAX     8          /* pixels that a picture is moved by, on each axis */
#define HTH_SEQ_LEN_MAX        65536      /* bytes of one sample of text */
#define HTH_SHUFFLE_BYTES_MAX  (1u << 30) /* of the shuffle buffer */
#define HTH_FLIGHTS_MAX        1024       /* micro-batches in the air of one trainer */
#define HTH_MICRO_BATCH_MAX    65536      /* samples of one micro-batch */
#define HTH_KEPT_MAX           100        /* checkpoints that --keep leaves */
#define HTH_PICTURES_MAX       1024       /* drawn at once */
#define HTH_PROMPT_BYTES_MAX   65536      /* of a text to continue */
#define HTH_WRITE_TOKENS_MAX   (1u << 20) /* of its continuation */
#define HTH_MODEL_LAYERS_MAX   64         /* DMoE layers of one model */
#define HTH_MODEL_DIM_MAX      65536      /* width of a model */

/* averaging: the roster, and handing out a run's state */
#define HTH_AVG_ROSTER_HIGH      96                   /* records, beyond which peers are sampled */
#define HTH_AVG_ROSTER_LOW_PART  4                    /* below 1/4 of it fewer are sampled out */
#define HTH_AVG_ROSTER_MAX       1024                 /* records believed */
#define HTH_AVG_ROSTER_LEVEL_MAX 20                   /* of sampling: 2^20 times the peers seen */
#define HTH_AVG_STEP_MAX         (UINT64_C(1) << 48)  /* a record may state: steps, rounds */
#define HTH_AVG_SAMPLES_MAX      (UINT64_C(1) << 40)  /* of one peer towards one step */
#define HTH_AVG_RATE_MAX         1e9                  /* samples a second of one peer */
#define HTH_AVG_GRAIN_MAX        (1u << 24)           /* samples that land at once */
/* Of one member in one batch, and in the air: below HTH_AVG_WEIGHT_MAX, or no line of it begins. */
#define HTH_ROLL_SAMPLES_MAX     (1u << 29)
#define HTH_STATE_BYTES_MAX      (UINT64_C(16) << 30) /* of one state, in at most 1024 parts */
#define HTH_STATE_PART_BYTES_MIN (16u << 10) /* a power of 2 of bytes; the last part is short */
#define HTH_STATE_PART_BYTES_MAX (16u << 20)
#define HTH_STATE_META_MAX       256 /* bytes beside the blob */
#define HTH_STATE_DONORS_MAX     64  /* that a fetcher remembers */
#define HTH_STATE_REACH          4   /* clients that dial newcomers, about, ... */
#define HTH_STATE_DIAL_US        INT64_C(250000) /* ... each one in such a time */

/* gating */
#define HTH_BEAM_WIDTH_DEFAULT    64 /* prefixes kept per level */
#define HTH_BEAM_WIDTH_MAX        65536
#define HTH_BREAKER_HOSTS_MAX     65536 /* failing hosts remembered */
#define HTH_BENCH_GATE_ROWS_MAX   65536 /* rows of a batch that the benchmark makes */
#define HTH_BENCH_GATE_ROUNDS_MAX 10000

/* experts */
#define HTH_ST_HEADER_BYTES_MAX        (2u << 20) /* JSON header of a safetensors file */
#define HTH_ST_TENSORS_MAX             32768      /* tensors of one file */
#define HTH_ST_NAME_MAX                255        /* bytes of a tensor's name or a metadata key */
#define HTH_ST_TEXT_MAX                65536      /* bytes of a metadata text that we write */
#define HTH_EXPERT_D_MAX               65536      /* width of a row */
#define HTH_EXPERT_INNER_MAX           (1u << 20) /* width of an expert's hidden layer */
#define HTH_EXPERT_BLOCK_ROWS_MAX      65536      /* rows of one sequence */
#define HTH_EXPERT_PARAMS_MAX          (1u << 30) /* weights of one expert */
#define HTH_EXPERT_PARTS_MAX           8192       /* experts named by one request */
#define HTH_EXPERT_CALL_PARTS_MAX      4096 /* ... by a request of our client: 60 KiB at most */
#define HTH_EXPERT_CALL_BYTES_MAX      (96u << 20) /* ... and tensors, counted as fp32 */
#define HTH_EXPERT_CALL_ROWS_MAX       65536       /* rows of a request of our client */
#define HTH_EXPERT_REQUEST_FLOATS_MAX  (32u << 20) /* in a request's tensors: 128 MiB of fp32 */
#define HTH_EXPERT_PAIRS_MAX           (1u << 22)  /* pairs of one batch of the client */
#define HTH_EXPERT_INFO_PAGE_MAX       256         /* experts in one INFO reply */
#define HTH_EXPERT_MICROBATCH_ROWS_MAX (1u << 24)  /* declared by a backward */
#define HTH_EXPERT_NUMBER_MAX          1e15f       /* in received rows: squares can be summed */
#define HTH_EXPERT_GAIN_FACTOR         100.0       /* of an answer over what is usual */
#define HTH_EXPERT_GAIN_FIRST_MAX      10.0        /* of a first answer: honest ones are below */
#define HTH_SERVER_EXPERTS_MAX         65536       /* hosted by one server */
#define HTH_SERVER_CALLERS_MAX         1024        /* peers that a server remembers as callers */
#define HTH_SERVER_BATCH_PARTS_MAX     1024        /* parts merged into one batch */
#define HTH_SERVER_JOB_BATCHES_MAX     64          /* batches bundled into one job */
#define HTH_SERVER_WAITERS_MAX         16          /* repeats that wait for one running backward */
#define HTH_CHECKPOINT_BYTES_MAX       (UINT64_C(16) << 30) /* of one expert */
#define HTH_EXPERT_STEPS_MAX           (UINT64_C(1) << 48)  /* a checkpoint may state */

/* kernels */
#define HTH_PARAMS_TENSORS_MAX 4096                /* tensors of one parameter set */
#define HTH_PARAMS_FLOATS_MAX  (UINT64_C(1) << 33) /* floats of one parameter set */
#define HTH_PARAM_NAME_MAX     95                  /* bytes of a tensor's name */
#define HTH_SEQ_MAX            65536               /* positions of a sequence */
#define HTH_HEAD_DIM_MAX       4096                /* columns of an attention head */

/* sim: files that people give it */
#define HTH_AVAIL_BYTES_MAX    (64u << 20) /* of a trace of availability */
#define HTH_AVAIL_ROWS_MAX     (1u << 20)
#define HTH_AVAIL_PEERS_MAX    100000
#define HTH_SCENARIO_BYTES_MAX (64u << 10) /* of a scenario */
#define HTH_SCENARIO_NODES_MAX 20000
#define HTH_SCENARIO_ZONES_MAX 32
#define HTH_PROFILE_BYTES_MAX  (256u << 10) /* of a device's measured speeds */
#define HTH_PROFILE_POINTS_MAX 1024         /* of each kind of work */

/* app */
#define HTH_APP_BODIES_BYTES_MIN     (32u << 20)  /* of all connections, on any machine */
#define HTH_APP_BODIES_BYTES_UNKNOWN (512u << 20) /* where nothing says how much memory there is */

#endif
