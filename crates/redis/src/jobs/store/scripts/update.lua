-- Carries out a batch of changes of one partition, of jobs that are there already and of the partition's
-- settings. It runs also when Redis is out of memory.
-- ARGV, from the third on, for each change: its name and its arguments, by the names that `change.rs` has.
-- Returns a number for each change, with a space between two: 0 where the job was not as the change wants it,
-- and else what each says.
--
-- Starts and dones, which every job needs, are carried out together, whatever their order: a few commands for
-- all of a batch.
if is_resent then return last_answer end
if is_late then return refuse() end

local answers = {}
local wake, renew = false, false
-- Whether a job may have stopped running or being claimed, and the changes of the batch by which its holder
-- has let it go.
local freed, ended = false, {}
-- Nobody was told of what is due later while no more might run.
local was_full = max_running and left_in(running, claimed) == 0

-- Workers look again when there is another first one.
local function wake_if_first(id)
  if call('ZRANGE', due, 0, 0)[1] == id then wake = true end
end

local function to_due_and_wake(from, id, attempts, at, max_attempts, failure)
  to_due(from, id, attempts, at, max_attempts, failure)
  wake_if_first(id)
end

local function end_cancelled_and_wake(from, id)
  if end_cancelled(from, id) then wake_if_first(id) end
end

-- The starts and the dones that are yet to be carried out, and the number of each in the batch.
local starts, dones

local function read_from(set, list)
  local ids = list.ids
  list.states = call('HMGET', state, unpack(ids))
  list.ends = call('ZMSCORE', set, unpack(ids))
  list.grids = call('HMGET', repeats, unpack(ids))
end

local function carry_out_dones()
  local held = {}
  for n, id in ipairs(dones.ids) do
    local held_by, _, at = parse(dones.states[n])
    local holder, till, nth = dones.holders[n], dones.ends[n], dones.numbers[n]
    answers[nth] = '0'
    ended[#ended + 1] = nth
    if held_by == holder and till and tonumber(till) > now then
      local first, every = grid_of(dones.grids[n])
      answers[nth] = '1'
      if every then
        come_again(running, id, at, first, every)
        wake_if_first(id)
        answers[nth] = '2'
      else
        held[#held + 1] = id
      end
    elseif till and held_by == '!' .. holder then
      end_cancelled_and_wake(running, id)
    end
  end
  if held[1] then
    call('ZREM', running, unpack(held))
    call('HDEL', state, unpack(held))
    call('HDEL', payload, unpack(held))
  end
end

local function carry_out_starts()
  local left = left_in(running)
  local held, scores, after, lease_ends = {}, {}, {}, {}
  for n, id in ipairs(starts.ids) do
    local held_by, attempts, at, max_attempts, failure = parse(starts.states[n])
    local till, lease, nth = starts.ends[n], starts.leases[n], starts.numbers[n]
    answers[nth] = '0'
    if held_by == starts.holders[n] and till and (#held >= left or tonumber(at) > now) then
      -- Nothing starts now, or the clock was set back after the job was claimed, so that it is not due any
      -- more.
      to_due_and_wake(claimed, id, attempts, at, max_attempts, failure)
    elseif held_by == starts.holders[n] and till and tonumber(till) > now then
      answers[nth] = '1'
      -- This delivery is for all points that have passed.
      local first, every = grid_of(starts.grids[n])
      local passed = every and last_point(first, every, now)
      if passed and passed > tonumber(at) then at = exact(passed) end
      held[#held + 1] = id
      -- Most have one lease.
      lease_ends[lease] = lease_ends[lease] or exact(now + lease)
      scores[#scores + 1] = lease_ends[lease]
      scores[#scores + 1] = id
      after[#after + 1] = id
      after[#after + 1] = state_of(held_by, exact(attempts + 1), at, starts.max_attempts[n], failure)
    end
  end
  if held[1] then
    call('ZADD', running, unpack(scores))
    call('HSET', state, unpack(after))
    call('ZREM', claimed, unpack(held))
  end
end

-- No job is started and done in one batch, so it does not matter which comes first. A start takes the place
-- of a job that is done. All is read before anything is written.
local function carry_out()
  if dones then read_from(running, dones) end
  if starts then read_from(claimed, starts) end
  if dones then carry_out_dones() end
  if starts then carry_out_starts() end
  starts, dones = nil, nil
end

-- Carries out any other change, of which a batch has few.
local other

local function other_changes()
  -- Returns 2 if the job comes again.
  local function bury_or_repeat(from, id, attempts, at, failure)
    if not bury(from, id, attempts, at, failure) then return '1' end
    wake_if_first(id)
    return '2'
  end

  -- Acts on one job that is in one of these sets, or returns 0.
  local function of_anybody(id, sets, act)
    for _, from in ipairs(sets) do
      if call('ZSCORE', from, id) then
        act(from)
        return '1'
      end
    end
    return '0'
  end

  -- Acts on so many dead jobs, and returns how many they were.
  local function of_dead(count, act)
    local found = call('ZRANGE', dead, '-inf', '(+inf', 'BYSCORE', 'LIMIT', 0, math.min(tonumber(count), 100))
    for _, id in ipairs(found) do act(dead, id) end
    return tostring(#found)
  end

  local function revive(from, id)
    to_due_and_wake(from, id, '0', exact(now), NEVER, '')
  end

  -- Each change, with what it is given, by the names that `change.rs` has. A change by who holds a job under a
  -- lease that lasts says `from` where it takes that.
  local changes = {
    -- Takes back a claim or its start, which may not have been carried out.
    give_back = { 'id', 'holder', 'was_tried', from = { running, claimed }, act = function(from, id, given, attempts, at, max_attempts, failure)
      if from == running then
        attempts = exact(attempts - 1)
        if given.was_tried == '0' then max_attempts = NEVER end
      end
      to_due_and_wake(from, id, attempts, at, max_attempts, failure)
    end },
    -- Nobody holds a claim while nothing may start.
    renew = { 'id', 'holder', 'lease', from = { running, claimed }, act = function(from, id, given, attempts, at, max_attempts, failure)
      if from == claimed and is_paused then
        to_due(from, id, attempts, at, max_attempts, failure)
        return '0'
      end
      call('ZADD', from, exact(now + given.lease), id)
    end },
    bury = { 'id', 'holder', 'failure', from = { running }, act = function(from, id, given, attempts, at)
      return bury_or_repeat(from, id, attempts, at, given.failure)
    end },
    -- Of a worker that could not fetch the payload.
    unfetched = { 'id', 'holder', 'max_attempts', from = { claimed }, act = function(from, id, given, attempts, at)
      fail(from, id, attempts, at, tonumber(given.max_attempts),
        'its payload of ' .. call('HSTRLEN', payload, id) .. ' bytes could not be fetched in time')
      wake_if_first(id)
    end },
    retry = { 'id', 'holder', 'delay', 'failure', from = { running }, act = function(from, id, given, attempts, at, max_attempts)
      -- Each start stores its `max_attempts`. Where something else has removed that, it is tried again.
      if tonumber(attempts) >= (tonumber(max_attempts) or math.huge) then return bury_or_repeat(from, id, attempts, at, given.failure) end
      to_due_and_wake(from, id, attempts, exact(now + given.delay), max_attempts, given.failure)
    end },
    -- The start does not count.
    snooze = { 'id', 'holder', 'delay', from = { running }, act = function(from, id, given, attempts, _, max_attempts, failure)
      to_due_and_wake(from, id, exact(attempts - 1), exact(now + given.delay), max_attempts, failure)
    end },
    -- The handler of a job has ended which may have been cancelled.
    confirm = { 'id', 'holder', from = {} },
    cancel = { 'id', act = function(given)
      local id = given.id
      if of_anybody(id, { due, claimed }, function(from) delete(from, id) end) == '1' then return '1' end
      if not call('ZSCORE', running, id) then return '0' end
      local repeated = call('HDEL', repeats, id) == 1
      local held_by, attempts, at, max_attempts, failure = read(id)
      if string.sub(held_by, 1, 1) == '!' then return repeated and '2' or '0' end
      -- Its holder has lost it with this.
      write(id, '!' .. held_by, attempts, at, max_attempts, failure)
      renew = true
      return '2'
    end },
    reschedule = { 'id', 'delay', act = function(given)
      local id = given.id
      return of_anybody(id, { due, claimed }, function(from)
        local _, attempts, _, max_attempts, failure = read(id)
        to_due_and_wake(from, id, attempts, exact(now + given.delay), max_attempts, failure)
      end)
    end },
    revive = { 'id', act = function(given) return of_anybody(given.id, { dead }, function(from) revive(from, given.id) end) end },
    purge = { 'id', act = function(given) return of_anybody(given.id, { dead }, function(from) delete(from, given.id) end) end },
    revive_dead = { 'count', act = function(given) return of_dead(given.count, revive) end },
    purge_dead = { 'count', act = function(given) return of_dead(given.count, delete) end },
    pause = { act = function()
      local changed = call('HSET', settings, 'paused', '1') == 1
      is_paused = true
      renew = renew or changed
      return changed and '1' or '0'
    end },
    resume = { act = function()
      local changed = call('HDEL', settings, 'paused') == 1
      is_paused = false
      wake = wake or changed
      return changed and '1' or '0'
    end },
    -- Of jobs that run already, none ends.
    set_max_running = { 'jobs', act = function(given)
      if given.jobs == 'any' then
        max_running = false
        call('HDEL', settings, 'running')
      else
        max_running = given.jobs
        call('HSET', settings, 'running', max_running)
      end
      wake = true
      return '1'
    end },
    keep_dead = { 'count', 'age', act = function(given)
      call('HSET', settings, 'keep', given.count .. ' ' .. given.age)
      died = true
      return '1'
    end },
    -- Of a worker that ends.
    unlist = { 'worker', act = function(given)
      unlist(given.worker, 0)
      return '1'
    end },
  }

  local function of_holder(name, given)
    local id, holder = given.id, given.holder
    local held_by, attempts, at, max_attempts, failure = read(id)
    if held_by == '!' .. holder then
      if name ~= 'renew' and call('ZSCORE', running, id) then end_cancelled_and_wake(running, id) end
      return '0'
    end
    if held_by ~= holder then return '0' end
    for _, from in ipairs(changes[name].from) do
      local score = call('ZSCORE', from, id)
      if score and tonumber(score) > now then
        return changes[name].act(from, id, given, attempts, at, max_attempts, failure) or '1'
      end
    end
    return '0'
  end

  -- Carries out the nth change, which stands there in ARGV. Returns where the next one stands.
  return function(at, nth)
    local name, given = ARGV[at], {}
    local change = changes[name]
    for n, argument in ipairs(change) do given[argument] = ARGV[at + n] end
    if change.from then
      answers[nth] = of_holder(name, given)
      if name ~= 'renew' then ended[#ended + 1] = nth end
    else
      answers[nth] = change.act(given)
      freed = true
    end
    return at + 1 + #change
  end
end

local at, nth = 3, 0
while at <= #ARGV do
  local change = ARGV[at]
  nth = nth + 1
  if change == 'start' then
    local id, holder, lease, max_attempts = unpack(ARGV, at + 1, at + 4)
    starts = starts or { ids = {}, holders = {}, leases = {}, max_attempts = {}, numbers = {} }
    local n = #starts.ids + 1
    starts.ids[n], starts.holders[n], starts.leases[n], starts.max_attempts[n], starts.numbers[n] = id, holder, lease, max_attempts, nth
    at = at + 5
  elseif change == 'done' then
    local id, holder = unpack(ARGV, at + 1, at + 2)
    dones = dones or { ids = {}, holders = {}, numbers = {} }
    local n = #dones.ids + 1
    dones.ids[n], dones.holders[n], dones.numbers[n] = id, holder, nth
    at = at + 3
  else
    if not other then
      -- Nothing has been written yet.
      local wrong = wrong_type({ due, claimed, running, dead, watching }, { state, payload, repeats })
      if wrong then return wrong end
      other = other_changes()
    end
    -- In the order in which they were asked for.
    carry_out()
    at = other(at, nth)
  end
end
local wrong = not other and wrong_type({ due, running, watching }, { payload })
if wrong then return wrong end
carry_out()
-- What waited for one of them to end may start now, in the process that has ended it or in another.
if max_running and (freed or ended[1]) and left_in(running, claimed) > 0 then
  local first = tonumber(call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
  if first and (was_full or first <= now) then
    wake = true
    for _, change in ipairs(ended) do
      if answers[change] == '1' then answers[change] = '2' end
    end
  end
end
if died then trim_dead() end
local answer = table.concat(answers, ' ')
remember(answer)
if renew then tell_to_renew() end
if wake then hint() end
return answer
