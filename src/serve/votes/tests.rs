use super::*;
use proptest::prelude::*;

/// Looks at the others' boards, in the tests that say what a member waits for.
const PATIENCE: usize = 3;

fn polls(servers: usize, members: usize) -> Vec<Poll> {
    (0..members).map(|own| Poll::new(servers, members, own)).collect()
}

/// Everyone of `who` hears of everyone of `who`.
fn talk(polls: &mut [Poll], who: &[usize]) {
    for from in who {
        let word = polls[*from].word(*from);
        who.iter().for_each(|to| polls[*to].learn(*from, word));
    }
}

fn suspects(suspects: Servers) -> Sight {
    Sight { suspects, ..Sight::default() }
}

/// Everyone of `who` takes turns with its sight, and hears of everyone of `heard` in time, until
/// `is_over`. Gives the turns; none after very many.
fn settle(
    polls: &mut [Poll],
    (who, heard): (&[usize], &[usize]),
    sight: impl Fn(usize) -> Sight,
    is_over: impl Fn(&Poll) -> bool,
) -> Option<usize> {
    let mut waits = vec![(None, 0); polls.len()];
    for turn in 0..100 * polls[0].servers {
        talk(polls, heard);
        for member in who {
            let (step, since) = &mut waits[*member];
            let now = polls[*member].waits();
            (*step, *since) = (now, if now == *step { *since + 1 } else { 0 });
            let waited = now.filter(|_| *since >= PATIENCE);
            polls[*member].turn(Sight { waited, ..sight(*member) });
        }
        if who.iter().all(|member| is_over(&polls[*member])) {
            return Some(turn);
        }
    }
    None
}

#[test]
fn a_server_that_dies_is_removed_by_those_that_are_left() {
    let mut polls = polls(2, 6);
    let left = [1, 2, 3, 4, 5];
    for (count, member) in (1..).zip(left) {
        assert_eq!(polls[member].turn(suspects(1)), Some(0));
        assert_eq!(polls[member].turn(suspects(1)), None, "one vote each");
        talk(&mut polls, &left);
        let reported = polls[member].ballots[member].report;
        assert_eq!(reported, (count > 3).then_some(Some(0)), "{count} of 6 have voted");
    }
    assert!(settle(&mut polls, (&left, &left), |_| suspects(1), |it| it.removed() == 1).is_some());
    // The last server stays, whatever is seen of it.
    let sight = Sight { redundant: true, ..suspects(2) };
    assert_eq!(polls[2].turn(sight), None);
}

#[test]
fn servers_that_lose_sight_of_one_another_keep_the_lower() {
    let mut polls = polls(2, 4);
    assert_eq!(polls[1].turn(suspects(1)), Some(0));
    talk(&mut polls, &[1, 2, 3]);
    assert_eq!(polls[2].quarrel(), 0b11);
    // Not before both have been seen well since.
    assert_eq!(polls[2].turn(Sight { well: 0b10, ..Sight::default() }), None);
    let sight = |member| match member {
        0 | 1 => suspects(0b10 >> member),
        _ => Sight { well: 0b11, ..Sight::default() },
    };
    let all = [0, 1, 2, 3];
    assert!(settle(&mut polls, (&all, &all), sight, |it| it.removed() == 0b10).is_some());
}

/// If this fails, workers remove a server that is well, since one that reaches no other server
/// accuses it.
#[test]
fn of_servers_that_lose_sight_the_one_with_most_quarrels_goes() {
    let mut polls = polls(3, 6);
    let sight = |member| match member {
        0 => suspects(0b110),
        1 | 2 => suspects(0b001),
        _ => Sight { well: 0b111, ..Sight::default() },
    };
    let all = [0, 1, 2, 3, 4, 5];
    assert!(settle(&mut polls, (&all, &all), sight, |it| it.removed() == 0b001).is_some());
}

#[test]
fn who_is_cut_off_votes_nobody_out() {
    let mut polls = polls(3, 5);
    for member in [0, 4] {
        let sight = Sight { alone: true, ..suspects(0b110) };
        assert_eq!(polls[member].turn(sight), None);
        assert_eq!(polls[member].turn(suspects(0b100)), Some(2));
    }
}

/// If this fails, a job stands still: server 1 has died before it voted, and two of the four
/// others see the adapter of server 0 late.
#[test]
fn a_split_vote_is_followed_by_another_round() {
    let mut polls = polls(3, 5);
    let left = [0, 2, 3, 4];
    for member in left {
        polls[member].turn(suspects(if member == 2 || member == 3 { 0b001 } else { 0b010 }));
    }
    talk(&mut polls, &left);
    let before = polls[4].word(4);
    polls[4].turn(suspects(0b010));
    assert_eq!(polls[4].word(4), before, "server 1 may live, and decide this round");
    let turns = settle(&mut polls, (&left, &left), |_| suspects(0b010), |it| it.removed() == 2);
    assert!(turns.is_some(), "{polls:?}");
}

/// Server 2 is removed where somebody has seen its reports, and server 0 not where others have
/// not. If this fails, both are.
#[test]
fn who_is_behind_is_bound_by_reports_as_those_that_are_ahead() {
    let bound = Ballot { round: 1, vote: Some(2), is_bound: true, ..Ballot::default() };
    for report in [None, Some(Some(2))] {
        let mut poll = Poll::new(3, 5, 4);
        poll.learn(1, Ballot { report, ..bound }.encode());
        assert_eq!(poll.turn(suspects(0b001)), None);
        assert_eq!(poll.ballots[4], Ballot { report, ..bound });
    }
    // So it is with a report of nobody: it needs no votes of its own to believe it.
    let mut poll = Poll::new(3, 5, 4);
    poll.learn(1, Ballot { report: Some(None), ..Ballot::default() }.encode());
    poll.turn(Sight::default());
    assert_eq!(poll.ballots[4].report, Some(None));
    // Who is free is so there, too.
    let mut poll = Poll::new(3, 5, 4);
    poll.learn(1, Ballot { round: 1, ..Ballot::default() }.encode());
    assert_eq!(poll.turn(suspects(0b001)), Some(0));
}

/// One report of a server, perhaps of three. If this fails, those who have seen the others remove
/// it, and this one helps to remove another one in its place.
#[test]
fn who_has_seen_a_report_votes_for_its_server_in_the_next_round() {
    let mut poll = Poll::new(3, 5, 4);
    for (member, report) in [(0, Some(2)), (1, None), (3, None)] {
        poll.turn(suspects(0b001));
        poll.learn(member, Ballot { report: Some(report), ..Ballot::default() }.encode());
    }
    poll.ballots[4].report = Some(None);
    let waited = poll.waits();
    poll.turn(Sight { waited, ..suspects(0b001) });
    let bound = Ballot { round: 1, vote: Some(2), is_bound: true, ..Ballot::default() };
    assert_eq!(poll.ballots[4], bound);
}

/// Three of five have voted for server 0, and two of them have left since. If this fails, the
/// two others see a majority of their own.
#[test]
fn the_vote_of_a_member_that_has_left_counts() {
    let mut polls = polls(2, 5);
    for (member, accused) in [(0, 0b10), (1, 0b01), (2, 0b01), (3, 0b10), (4, 0b01)] {
        polls[member].turn(suspects(accused));
    }
    for member in [2, 4] {
        polls[member].mark(LEFT);
        let word = polls[member].word(member);
        assert_eq!(polls[member].turn(suspects(0b10)), None);
        talk(&mut polls, &[0, 2, 3, 4]);
        assert_eq!(polls[member].word(member), word, "who has left says nothing more");
    }
    let waited = polls[3].waits();
    polls[3].turn(Sight { waited, ..suspects(0b10) });
    assert_eq!(polls[3].ballots[3].report, Some(None));
    // Who left before it voted does not count.
    let mut poll = Poll::new(2, 5, 3);
    [2, 4].into_iter().for_each(|member| poll.learn(member, LEFT));
    poll.learn(0, Ballot { vote: Some(1), ..Ballot::default() }.encode());
    poll.turn(suspects(0b10));
    assert_eq!(poll.ballots[3].report, Some(Some(1)));
}

#[test]
fn what_a_member_said_before_is_not_taken_for_news() {
    let mut poll = Poll::new(3, 5, 4);
    let words = [
        Ballot { vote: Some(2), ..Ballot::default() },
        Ballot { vote: Some(2), report: Some(None), ..Ballot::default() },
        Ballot { round: 1, ..Ballot::default() },
        Ballot { removed: 0b1, ..Ballot::default() },
    ];
    words.iter().for_each(|word| poll.learn(1, word.encode()));
    words.iter().for_each(|word| poll.learn(1, word.encode()));
    assert_eq!(poll.ballots[1], words[3]);
    poll.learn(1, LEFT);
    poll.learn(1, words[0].encode());
    assert_eq!(poll.ballots[1], Ballot { marks: LEFT, ..words[3] });
}

/// If this fails, a job stands still where the link between two servers is lost with the third.
#[test]
fn servers_that_see_only_workers_vote() {
    let mut polls = polls(3, 5);
    let left = [0, 2, 3, 4];
    let sight = |member| match member {
        0 => suspects(0b110),
        2 => suspects(0b011),
        _ => suspects(0b010),
    };
    assert!(settle(&mut polls, (&left, &left), sight, |it| it.removed() == 0b010).is_some());
}

/// Server 0 is dead with others; those that live disagree at first, however they can. If this
/// fails, what is written of progress is wrong.
#[test]
fn more_that_live_than_have_died_remove_a_server() {
    for (members, dead, first_votes) in (3..8).flat_map(|members| {
        let votes = move |dead| (0..1 << (members - dead)).map(move |it| (members, dead, it));
        (1..members).flat_map(votes)
    }) {
        let mut polls = polls(3, members);
        // Servers 0 and up are dead, or workers where no server would be left.
        let is_dead = |it: usize| it < dead.min(2) || it > 2 && it - 3 < dead.saturating_sub(2);
        if dead + 1 > members {
            continue;
        }
        let left: Vec<usize> = (0..members).filter(|it| !is_dead(*it)).collect();
        for (bit, member) in left.iter().enumerate() {
            polls[*member].turn(suspects(if first_votes >> bit & 1 == 1 { 0b100 } else { 1 }));
        }
        let sight = |_| suspects(1);
        let turns = settle(&mut polls, (&left, &left), sight, |poll| poll.removed() != 0);
        let expected = left.len() > members - left.len();
        assert_eq!(turns.is_some(), expected, "{members} members, {dead} dead: {first_votes:b}");
    }
}

/// Members see anything, hear anything that was ever said, perhaps late, and leave at any time.
type Chaos = Vec<(usize, usize, [u8; 2], u8)>;

fn chaos(steps: usize) -> impl Strategy<Value = Chaos> {
    let step = (0..9_usize, 0..9_usize, any::<[u8; 2]>(), 0..100_u8);
    prop::collection::vec(step, 1..steps)
}

/// What all members together believe to be removed, checked for agreement after each step.
fn run(
    polls: &mut [Poll],
    chaos: Chaos,
    redundant: impl Fn(Servers) -> bool,
) -> std::result::Result<(), TestCaseError> {
    let members = polls.len();
    let mut said: Vec<Vec<u64>> = vec![vec![0]; members];
    // The removed servers after each choice, as the first one has seen them.
    let mut choices: Vec<Option<Servers>> = vec![None; polls[0].servers];
    for (who, other, [suspects, well], what) in chaos {
        let (who, other) = (who % members, other % members);
        match what {
            0 => polls[who].mark(LEFT),
            1..20 => {
                // An old word, or what a third one was known for: servers pass that on.
                let age = usize::from(suspects) % said[other].len();
                polls[who].learn(other, said[other][age]);
                let third = usize::from(well) % members;
                let word = polls[other].word(third);
                polls[who].learn(third, word);
            }
            20..50 => {
                for other in (0..members).filter(|other| suspects >> (other % 8) & 1 == 1) {
                    let word = polls[other].word(other);
                    polls[who].learn(other, word);
                }
            }
            _ => {
                let redundant = redundant(polls[who].removed());
                let (suspects, well) = (u64::from(suspects), u64::from(well));
                let waited = polls[who].waits().filter(|_| well & 16 == 0);
                let alone = well & 0xe0 == 0;
                polls[who].turn(Sight { suspects, well, alone, redundant, waited });
            }
        }
        let word = polls[who].word(who);
        if said[who].last() != Some(&word) {
            said[who].push(word);
        }
        let removed = polls[who].removed();
        let choice = &mut choices[removed.count_ones() as usize];
        prop_assert_eq!(*choice.get_or_insert(removed), removed, "{:?}", polls);
    }
    Ok(())
}

proptest! {
    /// If this fails, two servers that hold one shard are both removed, or each believes that
    /// it goes on alone: acknowledged gradients are lost.
    #[test]
    fn of_the_two_that_hold_a_shard_one_at_most_is_removed(
        servers in 2..5_usize,
        workers in 1..5_usize,
        chaos in chaos(400),
    ) {
        let mut polls = polls(servers, servers + workers);
        run(&mut polls, chaos, |_| false)?;
        // What anybody believes, taken together: without a replica anew, one at most.
        let removed = polls.iter().fold(0, |set, poll| set | poll.removed());
        prop_assert!(removed.count_ones() <= 1, "{removed:b} {polls:?}");
    }

    /// If this fails, two members believe in different removals, and go on with different
    /// servers; also where more than one is removed.
    #[test]
    fn nobody_sees_another_removal_than_anybody_else(
        servers in 2..6_usize,
        workers in 1..4_usize,
        chaos in chaos(600),
    ) {
        run(&mut polls(servers, servers + workers), chaos, |_| true)?;
    }

    /// Whatever was seen, said and heard before: when members that live suspect one server,
    /// perhaps with others, and hear of one another in time, it is removed, if they are more
    /// than those that have died. If this fails, a job stands still.
    #[test]
    fn a_server_that_all_suspect_is_removed(
        servers in 2..5_usize,
        workers in 1..5_usize,
        chaos in chaos(300),
        dead: u8,
        target in 0..5_usize,
        others: [u8; 9],
    ) {
        let members = servers + workers;
        let mut polls = polls(servers, members);
        run(&mut polls, chaos, |_| true)?;
        let target = target % servers;
        let sight = |member: usize| Sight {
            suspects: 1 << target | u64::from(others[member]),
            redundant: true,
            ..Sight::default()
        };
        // The target dies, and as many more as may.
        let has_left = |polls: &[Poll], it: usize| polls[it].ballots[it].has_left();
        let mut died = vec![target];
        for member in (0..members).filter(|it| *it != target && dead >> (it % 8) & 1 == 1) {
            let left = (0..members).filter(|it| has_left(&polls, *it)).count();
            if members > left + 2 * died.len() + 2 {
                died.push(member);
            }
        }
        // Others may be removed before it: who knows that of itself has stopped.
        loop {
            let has_stopped = |it: usize| it < servers && polls[it].removed() >> it & 1 == 1;
            let is_silent = |it: &usize| died.contains(it) || has_stopped(*it);
            let heard = (0..members).filter(|it| !is_silent(it));
            let removed = heard.clone().fold(0, |set, it| set | polls[it].removed());
            let is_gone = |member: usize| removed >> member & 1 == 1 && member < servers;
            let heard: Vec<_> = heard.filter(|it| !is_gone(*it)).collect();
            let live = heard.iter().copied().filter(|it| !has_left(&polls, *it));
            let live: Vec<_> = live.collect();
            let dead = (0..members).filter(|it| is_silent(it) && !is_gone(*it)).count();
            let is_last = (0..servers).all(|it| it == target || is_gone(it));
            if live.len() <= dead || is_gone(target) || is_last {
                break;
            }
            let before = polls.clone();
            let is_over = |poll: &Poll| poll.removed().count_ones() > removed.count_ones();
            let turns = settle(&mut polls, (&live, &heard), sight, is_over);
            prop_assert!(turns.is_some(), "{live:?} {heard:?} {before:?} {polls:?}");
        }
    }
}

/// If this fails, a connection between two servers that has come back costs one of them its part,
/// because one has voted for the other meanwhile.
#[test]
fn a_vote_for_a_server_that_is_reached_again_is_no_quarrel() {
    let mut polls: Vec<_> = (0..5).map(|own| Poll::new(2, 5, own)).collect();
    polls[1].turn(Sight { suspects: 1, ..Sight::default() });
    let word = polls[1].word(1);
    for (member, poll) in polls.iter_mut().enumerate() {
        poll.learn(1, word);
        assert_eq!(poll.quarrel(), 0b11, "member {member}: server 1 has voted for server 0");
        poll.learn_reach(1, 0);
        assert_eq!(poll.quarrel(), 0, "member {member}");
        let well = Sight { well: 0b11, ..Sight::default() };
        assert_eq!(poll.turn(well), None, "member {member}");
    }
}
